"""From engine answers to a finished sample: in one piece, in several, taken back, begun again, masked."""

import dataclasses
from typing import Any

import pytest

from relax_engine.backends.engines.types import GenerateOutput
from relax_engine.rollout.partial import (
    begin_again,
    extend,
    mask_off_policy,
    newest_version,
    oldest_counted_version,
    oldest_version,
    seam_tokens,
    take_back,
)
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
    extend(sample, answer([7, 8, 9], "stop", [("3", 0, 1), ("4", 1, 3)]))
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
    extend(sample, answer([], "stop", []))
    assert sample.tokens == [5, 6]
    assert (sample.response_length, sample.loss_mask, sample.rollout_log_probs) == (0, [], [])
    assert sample.first_version is None


@pytest.mark.parametrize(
    ("reason", "status"),
    [("stop", SampleStatus.COMPLETED), ("length", SampleStatus.TRUNCATED), ("abort", SampleStatus.ABORTED)],
)
def test_the_finish_reason_becomes_the_status(reason: str, status: SampleStatus) -> None:
    sample = Sample()
    extend(sample, answer([1], reason, [("0", 0, 1)]))
    assert sample.status is status


def test_a_second_piece_is_put_behind_the_first() -> None:
    sample = Sample(tokens=[5, 6])
    extend(sample, answer([7, 8], "abort", [("3", 0, 2)]))
    assert (sample.status, sample.response_length) == (SampleStatus.ABORTED, 2)
    extend(sample, answer([9], "stop", [("3", 0, 1)]))
    extend(sample, answer([4, 2], "length", [("5", 0, 2)]))
    assert sample.tokens == [5, 6, 7, 8, 9, 4, 2]
    assert sample.rollout_tokens == [7, 8, 9, 4, 2]
    assert sample.rollout_log_probs == [-0.5, -1.0, -0.5, -0.5, -1.0]
    assert sample.weight_versions == [WeightVersionSpan(3, 0, 3), WeightVersionSpan(5, 3, 5)]
    assert sample.status is SampleStatus.TRUNCATED
    assert sample.prompt_length == 2


def test_text_of_pieces_is_decoded_as_a_whole(tokenizer: Any) -> None:
    """The first piece ends within a character of three bytes; the stop token is no part of the text."""
    ids = tokenizer.encode("n€", add_special_tokens=False)
    sample = Sample(tokens=[5])
    extend(sample, answer(ids[:2], "abort", [("0", 0, 2)]), tokenizer)
    rest = answer([*ids[2:], tokenizer.eos_token_id], "stop", [("0", 0, len(ids) - 1)])
    rest = dataclasses.replace(rest, finish_reason={"type": "stop", "matched": tokenizer.eos_token_id})
    extend(sample, rest, tokenizer)
    assert sample.response == "n€"
    assert sample.response_length == len(ids) + 1


def spans(*versions: int) -> Sample:
    """A response of two tokens per version."""
    sample = Sample(tokens=[5, 6])
    for version in versions:
        extend(sample, answer([7, 8], "abort", [(str(version), 0, 2)]))
    return sample


def test_tokens_are_taken_back_with_everything_that_belongs_to_them() -> None:
    sample = spans(3, 4)
    take_back(sample, 3)
    assert (sample.tokens, sample.rollout_tokens, sample.loss_mask) == ([5, 6, 7], [7], [1])
    assert (sample.rollout_log_probs, sample.response_length) == ([-0.5], 1)
    assert sample.weight_versions == [WeightVersionSpan(3, 0, 1)]
    take_back(sample, 9)
    assert (sample.tokens, sample.weight_versions) == ([5, 6], [])


def test_begun_again_is_pending_but_for_its_aborts() -> None:
    sample = spans(3)
    sample.abort_count, sample.reward = 2, 1.0
    begin_again(sample)
    assert sample == Sample(tokens=[5, 6], abort_count=2)


def test_the_seam_is_as_long_as_a_stop_string_could_reach_over_it() -> None:
    assert seam_tokens(()) == 0
    assert seam_tokens(["x"]) == 0
    assert seam_tokens(["ab", "€", "\n\n"]) == 2


def test_the_mask_leaves_what_the_newest_weights_of_the_group_sampled() -> None:
    """A member that was finished before the others were cut off is out altogether."""
    group = [spans(3, 5, 4), spans(3), spans(5)]
    assert (oldest_version(group), newest_version(group)) == (3, 5)
    assert mask_off_policy(group, 5) == 6
    assert [sample.loss_mask for sample in group] == [[0, 0, 1, 1, 0, 0], [0, 0], [1, 1]]
    assert [oldest_counted_version(sample) for sample in group] == [5, None, 5]
    assert oldest_version(group) == 5
