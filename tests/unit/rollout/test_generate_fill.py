"""From an engine's answer to a finished sample."""

import pytest

from relax_engine.backends.engines.types import GenerateOutput
from relax_engine.rollout.generate import fill
from relax_engine.types import Sample, SampleStatus, WeightVersionSpan


def answer(ids: list[int], reason: str, spans: list[tuple[str, int, int]]) -> GenerateOutput:
    """What the client reads from `/generate`."""
    return GenerateOutput.from_json(
        {
            "text": "out",
            "output_ids": ids,
            "meta_info": {
                "id": "r1",
                "finish_reason": {"type": reason},
                "output_token_logprobs": [[-0.5 * (i + 1), token, None] for i, token in enumerate(ids)],
                "weight_version": "4",
                "weight_versions": [{"version": v, "start": a, "end": b} for v, a, b in spans],
                "prompt_tokens": 2,
                "completion_tokens": len(ids),
                "cached_tokens": 0,
                "num_retractions": 0,
                "e2e_latency": 0.1,
            },
        }
    )


def test_every_field_follows_the_response() -> None:
    sample = Sample(tokens=[5, 6])
    fill(sample, answer([7, 8, 9], "stop", [("3", 0, 1), ("4", 1, 3)]))
    assert sample.tokens == [5, 6, 7, 8, 9]
    assert (sample.rollout_tokens, sample.response_length, sample.prompt_length) == ([7, 8, 9], 3, 2)
    assert sample.loss_mask == [1, 1, 1]
    assert sample.rollout_log_probs == [-0.5, -1.0, -1.5]
    assert sample.weight_versions == [WeightVersionSpan(3, 0, 1), WeightVersionSpan(4, 1, 3)]
    assert sample.first_version == 3  # staleness counts from the first token (rllm#622)
    assert sample.response == "out"
    assert all(type(token) is int for token in sample.tokens)


def test_an_empty_response_is_a_sample_too() -> None:
    sample = Sample(tokens=[5, 6])
    fill(sample, answer([], "stop", []))
    assert sample.tokens == [5, 6]
    assert (sample.response_length, sample.loss_mask, sample.rollout_log_probs) == (0, [], [])
    assert sample.first_version is None


@pytest.mark.parametrize(
    ("reason", "status"),
    [("stop", SampleStatus.COMPLETED), ("length", SampleStatus.TRUNCATED), ("abort", SampleStatus.ABORTED)],
)
def test_the_finish_reason_becomes_the_status(reason: str, status: SampleStatus) -> None:
    sample = Sample()
    fill(sample, answer([1], reason, [("0", 0, 1)]))
    assert sample.status is status
