"""One fully-async run with every role: what staleness, overlap and the columns of other roles look like."""

import json
from pathlib import Path
from typing import Any

import pytest

from relax_engine.core.result import RunResult
from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics

STEPS, SAMPLES, BOUND = 4, 16, 1


@pytest.fixture(scope="module")
def result(ray_cluster: None, tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Four steps under a bound of one version, with old and reference log-probs from roles of their own."""
    config = tiny.config(
        tmp_path_factory.mktemp("async"),
        fully_async=True,
        max_staleness=BOUND,
        resource={"actor": [1, 1], "rollout": [1, 1], "actor_fwd": [1, 1], "reference": [1, 1], "advantages": [1, 0]},
        use_kl_loss=True,
        kl_loss_coef=0.01,
        num_rollout=STEPS,
        num_iters_per_train_update=2,
        weight_sync_transport="shared_memory",
        weight_sync_mode="delta",
    )
    return train(config)


@pytest.fixture(scope="module")
def records(result: RunResult) -> list[dict[str, Any]]:
    return read_metrics(Path(result.run_dir) / "metrics.jsonl")


def test_no_sample_is_older_than_the_bound(result: RunResult, records: list[dict[str, Any]]) -> None:
    assert [record["step"] for record in records] == list(range(STEPS))
    for record in records:
        assert 0 <= record["rollout/staleness/min"] <= record["rollout/staleness/max"] <= BOUND
    assert set(result.staleness_histogram) <= set(range(BOUND + 1))
    assert sum(result.staleness_histogram.values()) == STEPS * SAMPLES
    # The second partition is generated while the first is trained.
    assert result.staleness_histogram[1] > 0


def test_every_sample_is_accounted_for(records: list[dict[str, Any]]) -> None:
    for record in records:
        ended = sum(record[f"stream/{outcome}"] for outcome in ("trained", "filtered", "dropped_stale"))
        assert record["stream/produced"] == ended + record["stream/in_flight"]
        assert record["stream/produced"] <= (record["step"] + 1 + BOUND) * SAMPLES
    assert records[-1]["stream/trained"] == STEPS * SAMPLES
    assert (records[-1]["stream/in_flight"], records[-1]["stream/dropped_stale"]) == (0, 0)


def test_the_columns_of_other_roles_are_used(records: list[dict[str, Any]]) -> None:
    # The first batch was sampled by the initial policy, which is the reference and the old policy, too.
    assert records[0]["train/kl_loss"] == pytest.approx(0.0, abs=1e-7)
    assert records[0]["train/train_rollout_logprob_abs_diff/max"] < 1e-3
    assert records[-1]["train/kl_loss"] != 0.0
    for record in records:
        assert record["weight_sync/logprob_max_abs_diff"] < 1e-3
        assert record["weight_sync/quarantined"] == 0
        assert record["train/grad_norm"] > 0


def test_roles_work_at_the_same_time(result: RunResult) -> None:
    roles = {name.split("/")[0] for name in result.phase_seconds}
    assert roles == {"actor", "rollout", "actor_fwd", "reference", "advantages"}
    timeline = json.loads((Path(result.run_dir) / "timeline.json").read_text())
    generation = [phase for phase in timeline if phase["role"] == "rollout"]
    others = [phase for phase in timeline if phase["role"] != "rollout"]
    assert any(a["start"] < b["end"] and b["start"] < a["end"] for a in generation for b in others)
