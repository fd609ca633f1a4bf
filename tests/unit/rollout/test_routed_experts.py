"""The experts that tokens were sent to: from an engine's answer to the column that training replays."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from relax_engine.algorithms import registry
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.backends.engines.types import GenerateOutput
from relax_engine.rollout.convert import to_columns
from relax_engine.rollout.partial import begin_again, extend, take_back
from relax_engine.rollout.pool import RolloutError
from relax_engine.rollout.reward_stage import RewardStage
from relax_engine.stream.columns import ROUTED_EXPERTS, ColumnBatch
from relax_engine.types import Sample

LAYERS, EACH = 3, 2


def _answer(prompt: int, count: int, weights: int) -> GenerateOutput:
    """Token t of an answer by weights w went to experts `10 w + t` everywhere."""
    tokens = prompt + count - 1
    sent = np.broadcast_to((10 * weights + np.arange(tokens))[:, None, None], (tokens, LAYERS, EACH))
    meta: dict[str, Any] = {
        "id": "r",
        "finish_reason": {"type": "length"},
        "output_token_logprobs": [[-1.0, token, None] for token in range(count)],
        "weight_version": str(weights),
        "prompt_tokens": prompt,
        "routed_experts": base64.b64encode(sent.astype("<i4").tobytes()).decode(),
    }
    return GenerateOutput.from_json({"text": "", "output_ids": list(range(count)), "meta_info": meta})


def _sample() -> Sample:
    """Two prompt tokens, three of weights 1, then two of weights 2."""
    sample = Sample(tokens=[5, 6], reward=1.0)
    extend(sample, _answer(2, 3, weights=1))
    extend(sample, _answer(5, 2, weights=2))
    return sample


def _first(sample: Sample) -> list[int]:
    assert sample.rollout_routed_experts is not None
    assert sample.rollout_routed_experts.shape[1] == LAYERS * EACH
    return sample.rollout_routed_experts[:, 0].tolist()


def _columns(*samples: Sample) -> ColumnBatch:
    stage = RewardStage(registry.get("grpo"), AlgorithmSettings(), reward_key=None)
    return to_columns([list(samples)], stage, routed_experts=True)


def test_tokens_keep_the_experts_that_they_were_sampled_with() -> None:
    # The last token of the first piece was computed only when the second began.
    assert _first(_sample()) == [10, 11, 12, 13, 24, 25]


def test_tokens_that_are_taken_back_take_their_experts_along() -> None:
    sample = _sample()
    take_back(sample, 3)
    assert (len(sample.tokens), _first(sample)) == (4, [10, 11, 12])
    extend(sample, _answer(4, 2, weights=3))
    assert _first(sample) == [10, 11, 12, 33, 34]
    begin_again(sample)
    assert sample.rollout_routed_experts is None


def test_the_column_has_a_line_for_each_token_and_says_what_is_not_known() -> None:
    empty = Sample(tokens=[5, 6], reward=0.0, rollout_log_probs=[], loss_mask=[])
    column = _columns(_sample(), empty)[ROUTED_EXPERTS]
    assert (column.dtype, column.shape) == (np.int16, (9, LAYERS * EACH))
    assert column.row(0)[:, 3].tolist() == [10, 11, 12, 13, 24, 25, -1]
    assert column.row(1)[:, 0].tolist() == [-1, -1]
    assert column.select([1, 0]).row(1)[:, 3].tolist() == [10, 11, 12, 13, 24, 25, -1]


def test_a_response_of_unknown_experts_is_refused_by_name() -> None:
    made = Sample(index=7, tokens=[5, 6, 7], response_length=1, loss_mask=[1], rollout_log_probs=[-1.0], reward=1.0)
    with pytest.raises(RolloutError, match=r"sample 7 of group 0 .* sample\.rollout_routed_experts"):
        _columns(_sample(), made)


def test_a_sample_is_written_and_read_with_them() -> None:
    sample = _sample()
    again = Sample.from_dict(json.loads(json.dumps(sample.to_dict())))
    assert (again, _first(again)) == (sample, _first(sample))
    assert again.rollout_routed_experts is not None
    assert again.rollout_routed_experts.dtype == np.int16
