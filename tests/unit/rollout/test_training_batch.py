"""Samples as columns, and the metrics of a rollout."""

import math

import numpy as np
import pytest

from relax_engine.algorithms import registry
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.rollout.convert import leave_one_out_metrics, repeats_itself, rollout_metrics, to_columns
from relax_engine.rollout.reward_stage import RewardStage
from relax_engine.stream.columns import ColumnBatch
from relax_engine.types import Sample, SampleStatus, WeightVersionSpan

GRPO = registry.get("grpo")


def sample(group: int, index: int, reward: object, *, response: int = 2, versions: tuple[int, ...] = (3,)) -> Sample:
    spans = [WeightVersionSpan(version, at, at + 1) for at, version in enumerate(versions)] if response else []
    return Sample(
        group_index=group,
        index=index,
        tokens=[1, 2, 3, *range(10, 10 + response)],
        response_length=response,
        loss_mask=[1] * response,
        rollout_log_probs=[-0.25] * response,
        reward=reward,
        weight_versions=spans,
        status=SampleStatus.COMPLETED,
    )


def columns(groups: list[list[Sample]], **settings: object) -> ColumnBatch:
    key = settings.pop("reward_key", None)
    return to_columns(groups, RewardStage(GRPO, AlgorithmSettings(**settings), reward_key=key))


def test_names_types_and_layout() -> None:
    batch = columns([[sample(7, 14, 1.0), sample(7, 15, 0.0, response=4, versions=(3, 5))]])
    ragged = {"tokens": "int32", "loss_masks": "uint8", "rollout_log_probs": "float32"}
    fixed = {
        "response_lengths": "int32", "rewards": "float32", "raw_reward": "float32", "group_index": "int64",
        "sample_indices": "int64", "truncated": "uint8", "first_version": "int32", "last_version": "int32",
    }  # fmt: skip
    assert {name: str(column.values.dtype) for name, column in batch.items()} == ragged | fixed
    assert {name for name, column in batch.items() if column.offsets is not None} == set(ragged)
    assert batch["tokens"].row(1).tolist() == [1, 2, 3, 10, 11, 12, 13]
    assert batch["response_lengths"].values.tolist() == [2, 4]
    for name in ("loss_masks", "rollout_log_probs"):
        assert batch[name].offsets.tolist() == [0, 2, 6]
    assert (batch["group_index"].values.tolist(), batch["sample_indices"].values.tolist()) == ([7, 7], [14, 15])
    assert (batch["first_version"].values.tolist(), batch["last_version"].values.tolist()) == ([3, 3], [3, 5])


def test_the_oldest_segment_counts_wherever_it_is() -> None:
    """A response that goes on at an engine which lags behind."""
    batch = columns([[sample(0, 0, 1.0, response=3, versions=(4, 3, 5)), sample(0, 1, 0.0)]])
    assert batch["first_version"].values.tolist() == [3, 3]
    assert batch["last_version"].values.tolist() == [5, 3]


def test_an_empty_response_keeps_its_row() -> None:
    batch = columns([[sample(0, 0, 1.0), sample(0, 1, 0.0, response=0), sample(0, 2, 0.5)]])
    assert batch.num_rows == 3
    assert batch["tokens"].row(1).tolist() == [1, 2, 3]
    assert batch["loss_masks"].lengths.tolist() == [2, 0, 2]
    assert batch["first_version"].values.tolist() == [3, -1, 3]
    assert batch["last_version"].values.tolist() == [3, -1, 3]
    only_empty = columns([[sample(0, 0, 1.0, response=0)]])
    assert str(only_empty["rollout_log_probs"].values.dtype) == "float32"


def test_masks_are_taken_over_and_a_removed_sample_has_none() -> None:
    masked, removed = sample(0, 0, 1.0, response=3), sample(0, 1, 0.0, response=3)
    masked.loss_mask = [1, 0, 1]
    removed.remove_sample = True
    batch = columns([[masked, removed]])
    assert batch["loss_masks"].values.tolist() == [1, 0, 1, 0, 0, 0]
    # It still is part of its group's statistics.
    assert batch["rewards"].values[0] > 0


def test_rewards_are_normalised_by_group_id_and_raw_ones_kept() -> None:
    # Two groups of different size and level: mean 0 in each; GRPO divides by the sample standard deviation.
    groups = [[sample(4, 0, 0.0), sample(4, 1, 1.0)], [sample(9, 2, 10.0), sample(9, 3, 10.0), sample(9, 4, 13.0)]]
    batch = columns(groups)
    rewards = batch["rewards"].values
    assert batch["raw_reward"].values.tolist() == [0.0, 1.0, 10.0, 10.0, 13.0]
    assert rewards[:2] == pytest.approx([-0.5 / math.sqrt(0.5), 0.5 / math.sqrt(0.5)], rel=1e-3)
    assert rewards[2:] == pytest.approx(np.array([-1, -1, 2]) / math.sqrt(3), rel=1e-3)
    centred = columns(groups, disable_grpo_std_normalization=True)["rewards"].values
    assert centred == pytest.approx([-0.5, 0.5, -1, -1, 2])
    raw = columns(groups, disable_rewards_normalization=True)["rewards"].values
    assert raw.tolist() == [0.0, 1.0, 10.0, 10.0, 13.0]


def test_a_group_without_spread_has_zero_rewards() -> None:
    assert columns([[sample(0, 0, 0.3), sample(0, 1, 0.3)]])["rewards"].values.tolist() == [0.0, 0.0]


def test_the_reward_key_picks_the_score() -> None:
    pair = [sample(0, 0, {"score": 1.0, "format": 0.5}), sample(0, 1, {"score": 0.0, "format": 1.0})]
    assert columns([pair], reward_key="score")["raw_reward"].values.tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match=r"sample 0: the reward is a dict .*format.*score.*--reward-key"):
        columns([pair])


def test_an_unscored_sample_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"sample 5 \(group 2\) has no reward"):
        columns([[sample(2, 5, None)]])


def test_rollout_metrics() -> None:
    groups = [
        [sample(0, 0, {"score": 1.0, "format": 1.0}, response=1), sample(0, 1, {"score": 0.0, "format": 0.0})],
        [sample(1, 2, {"score": 1.0, "format": 0.5}, response=9), sample(1, 3, {"score": 1.0, "format": 0.5})],
    ]
    groups[1][0].status = SampleStatus.TRUNCATED
    metrics = rollout_metrics(groups, "score")
    assert metrics == {
        "rollout/raw_reward": 0.75,
        "rollout/response_len/mean": 3.5,
        "rollout/response_len/median": 2.0,
        "rollout/response_len/max": 9.0,
        "rollout/response_len/min": 1.0,
        "rollout/truncated_ratio": 0.25,
        "rollout/repetition_frac": 0.0,
        "rollout/zero_std_ratio": 0.5,
        "rollout/zero_std/count_1": 1.0,
        "rollout/passrate/pass@1": 0.75,
        "rollout/passrate/pass@2": 1.0,
        "rollout/stop_reason/completed/count": 3.0,
        "rollout/stop_reason/completed/ratio": 0.75,
        "rollout/stop_reason/truncated/count": 1.0,
        "rollout/stop_reason/truncated/ratio": 0.25,
        "rollout/rollout_log_probs": metrics["rollout/rollout_log_probs"],
        "rollout/format": 0.5,
    }
    log_probs = [value for group in groups for sample in group for value in sample.rollout_log_probs or ()]
    assert metrics["rollout/rollout_log_probs"] == pytest.approx(sum(log_probs) / 14)


def test_a_response_that_goes_round_in_circles_is_counted() -> None:
    """Only long ones are looked at, and of them the last 10,000 characters."""
    rng = np.random.default_rng(0)
    noise = "".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz "), 20_000))
    texts = {"again " * 2000: True, "again " * 1600: False, noise: False, noise + "again " * 2000: True}
    assert {text: repeats_itself(text) for text in texts} == texts


def test_what_engines_had_cached() -> None:
    asked = [sample(0, 0, 1.0), sample(0, 1, 0.0)]
    for one, sent, cached in zip(asked, (30, 10), (25, 0), strict=True):
        one.sent_tokens, one.cached_tokens = sent, cached
    metrics = rollout_metrics([asked], None)
    assert metrics["rollout/prefix_cache_hit_rate"] == 25 / 40
    assert metrics["rollout/avg_cached_tokens_per_sample"] == 12.5


def test_percentiles_of_turns() -> None:
    played = [sample(0, i, 1.0) for i in range(5)]
    for turns, one in enumerate(played, start=1):
        one.metadata = {"environment": {"turns": turns}}
    metrics = rollout_metrics([played], None)
    found = {name: metrics[f"rollout/num_turn/{name}"] for name in ("min", "mean", "max", "p50", "p90")}
    assert found == {"min": 1.0, "mean": 3.0, "max": 5.0, "p50": 3.0, "p90": pytest.approx(4.6)}


def test_what_leave_one_out_baselines_make_of_rewards() -> None:
    """Advantages 1, -1/2, -1/2 and three of 0; the empty one of the second group has no tokens without a signal."""
    groups = [
        [sample(0, 0, 1.0, response=4), sample(0, 1, 0.0), sample(0, 2, 0.0)],
        [sample(1, 3, 1.0), sample(1, 4, 1.0), sample(1, 5, 1.0, response=0)],
    ]
    assert leave_one_out_metrics(groups, None) == {
        "rollout/rloo/baseline_mean": pytest.approx(4 / 6),
        "rollout/rloo/adv_abs_mean": pytest.approx(2 / 6),
        "rollout/rloo/no_signal_frac": 4 / 12,
        "rollout/rloo/empty_response_frac": pytest.approx(1 / 6),
        "rollout/rloo/zero_adv_group_frac": 0.5,
    }


def test_pass_at_k_is_the_unbiased_estimate() -> None:
    """Three of four samples wrong: 1 - C(3, 2) / C(4, 2) = 0.5, and one minus nothing at four."""
    group = [sample(0, i, 1.0 if i == 0 else 0.0) for i in range(4)]
    metrics = rollout_metrics([group], None)
    assert [metrics[f"rollout/passrate/pass@{k}"] for k in (1, 2, 4)] == [0.25, 0.5, 1.0]


def test_a_reward_that_is_no_number_does_not_hide_the_others() -> None:
    metrics = rollout_metrics([[sample(0, 0, 1.0), sample(0, 1, float("nan"))]], None)
    assert metrics["rollout/raw_reward"] == 1.0


def test_parts_of_a_reward_cannot_overwrite_a_metric() -> None:
    metrics = rollout_metrics([[sample(0, 0, {"score": 1.0, "raw_reward": 9.0, "truncated_ratio": 9.0})]], "score")
    assert (metrics["rollout/raw_reward"], metrics["rollout/truncated_ratio"]) == (1.0, 0.0)
