"""Hybrid runs: the numbers of colocate with nothing stale, the bound with something, and training before the end."""

import json
from pathlib import Path
from typing import Any

import core_rewards
import pytest

from relax_engine.core.result import RunResult
from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics

STEPS, SAMPLES = 3, 16
NUMBERS = ("train/loss", "train/grad_norm", "train/kl_loss", "rollout/raw_reward", "rollout/response_len/mean")
KL = {"use_kl_loss": True, "kl_loss_coef": 0.05, "num_iters_per_train_update": 2}


def numbers(result: RunResult) -> list[list[float]]:
    records = read_metrics(Path(result.run_dir) / "metrics.jsonl")
    return [[record[name] for name in NUMBERS] for record in records]


def phases(result: RunResult, role: str, name: str) -> list[dict[str, Any]]:
    timeline = json.loads((Path(result.run_dir) / "timeline.json").read_text())
    return [phase for phase in timeline if (phase["role"], phase["name"]) == (role, name)]


@pytest.mark.long
def test_without_staleness_hybrid_repeats_itself_and_colocate(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    """The same samples, rewards and losses, bit for bit: only placement and order of events differ.

    Two optimizer steps a rollout, of two parts each, so that old log-probs are computed, too.
    """
    modes = {"colocate": {}, "hybrid": {"hybrid": True}, "again": {"hybrid": True}}
    common = {"deterministic": True, "num_steps_per_rollout": 2, **KL}
    results = {name: train(tiny.config(tmp_path / name, **common, **flags)) for name, flags in modes.items()}
    expected = numbers(results["colocate"])
    assert len({tuple(step) for step in expected}) == STEPS
    assert numbers(results["hybrid"]) == expected
    assert numbers(results["again"]) == expected
    assert results["hybrid"].staleness_histogram == {0: STEPS * SAMPLES}


@pytest.fixture(scope="module")
def stale(ray_cluster: None, tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """One version of staleness, old policies kept, and a reference that moves every second step."""
    config = tiny.config(
        tmp_path_factory.mktemp("hybrid"),
        hybrid=True,
        max_staleness=1,
        keep_old_actor=True,
        ref_update_interval=2,
        update_weights_interval=2,
        num_rollout=4,
        custom_rm_path=f"{core_rewards.HERE}:spread_with_a_late_group",
        **KL,
    )
    return train(config)


def test_no_sample_is_older_than_bound_and_interval_allow(stale: RunResult) -> None:
    assert set(stale.staleness_histogram) <= {0, 1, 2}
    assert sum(stale.staleness_histogram.values()) == 4 * SAMPLES
    assert stale.metrics["stream/dropped_stale"] == 0


def test_weights_travel_every_second_step_and_at_the_end(stale: RunResult) -> None:
    versions = [record.get("weight_sync/version") for record in read_metrics(Path(stale.run_dir) / "metrics.jsonl")]
    assert versions == [None, 2.0, None, 4.0]
    assert len(phases(stale, "actor", "weight_sync")) == 3  # with the initial weights


def test_old_log_probs_are_those_of_the_weights_that_sampled(stale: RunResult) -> None:
    """Then they are the engine's, up to arithmetic, however far the policy has moved since."""
    for record in read_metrics(Path(stale.run_dir) / "metrics.jsonl"):
        assert 0 < record["train/train_rollout_logprob_abs_diff/max"] < 1e-3
    assert max(r["train/ratio/max"] for r in read_metrics(Path(stale.run_dir) / "metrics.jsonl")) > 1.01


def test_the_reference_moves_to_the_trained_weights(stale: RunResult) -> None:
    """At steps 0 and 2 policy and reference are one; in between an update lies between them."""
    kl = [record["train/kl_loss"] for record in read_metrics(Path(stale.run_dir) / "metrics.jsonl")]
    assert [kl[0], kl[2]] == pytest.approx([0.0, 0.0], abs=1e-7)
    assert abs(kl[1]) > 1e-6
    assert abs(kl[3]) > 1e-6


def test_training_begins_before_the_partition_is_complete(stale: RunResult) -> None:
    """The fourth group, whose reward is late, is overtaken until step 2, where its age would pass the bound.

    Steps 0 and 1 are trained without it; of step 2 the first part is trained while it is still missing, the second
    when it is there.
    """
    arrived = late_reward(stale)["end"]
    trained = {
        step: sorted(phase["start"] for phase in phases(stale, "actor", "train") if phase["step"] == step)
        for step in range(3)
    }
    assert [len(starts) for starts in trained.values()] == [2, 2, 2]
    assert max(trained[0] + trained[1]) < arrived
    assert trained[2][0] < arrived <= trained[2][1]


def late_reward(result: RunResult) -> dict[str, Any]:
    (found,) = [p for p in phases(result, "rollout", "reward") if p["end"] - p["start"] >= core_rewards.LATE_S]
    return found
