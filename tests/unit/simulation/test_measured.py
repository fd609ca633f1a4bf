"""Plans from runs: which phase becomes which timing, and whether the simulation gives the run's step time."""

import json
from pathlib import Path
from typing import Any

import pytest

from relax_engine.simulation import PlanError, read_run, simulate
from relax_engine.simulation.measured import _groups_of_a_request, measure

RUNS = json.loads(Path(__file__).with_name("runs.json").read_text())["runs"]
FACTS = {"rollout_batch_size": 4, "max_staleness": 0, "num_iters_per_train_update": 1}


def span(role: str, name: str, step: int, start: float, end: float) -> dict[str, Any]:
    return {"role": role, "name": name, "step": step, "start": start, "end": end}


def record(step: int, step_time: float, wait_time: float, **lags: int) -> dict[str, Any]:
    counts = {f"rollout/staleness/count/{lag.removeprefix('lag')}": count for lag, count in lags.items()}
    return {"step": step, "perf/step_time": step_time, "perf/wait_time": wait_time, **counts}


def unpacked(run: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    return run["facts"], [span(*entry) for entry in run["timeline"]], run["metrics"]


@pytest.mark.parametrize("name", RUNS)
def test_recorded_runs_are_reproduced(name: str) -> None:
    """Runs of the engine itself; the simulator gets phases, not step times."""
    measured = measure(*unpacked(RUNS[name]))
    result = simulate(measured.plan)
    assert result.step_time == pytest.approx(measured.step_time, rel=0.10)
    for lag in {*measured.staleness, *result.staleness}:
        assert result.staleness.get(lag, 0.0) == pytest.approx(measured.staleness.get(lag, 0.0), abs=0.15)


def test_colocate_phases() -> None:
    """One wave on two engines a step; advantages lie inside of training; the first step is left out."""
    timeline = [
        span("actor", "train", 0, 0, 100),
        *(
            entry
            for step, at in ((1, 1000.0), (2, 1020.0))
            for entry in (
                span("rollout", "generate", step, at, at + 4),
                span("rollout", "generate", step, at, at + 5),
                span("rollout", "reward", step, at + 4, at + 6),
                span("rollout", "reward", step, at + 5, at + 6),
                span("actor", "ref_log_probs", step, at + 7, at + 8),
                span("actor", "train", step, at + 8, at + 13),
                span("actor", "advantages", step, at + 8, at + 9),
                span("actor", "save", step, at + 13, at + 14),
                span("actor", "weight_sync", step, at + 14, at + 16),
            )
        ),
    ]
    metrics = [record(step, time, 0.0, lag0=8) for step, time in enumerate((200.0, 17.0, 17.0))]
    measured = measure({"mode": "colocate", **FACTS}, timeline, metrics)
    plan = measured.plan
    assert plan.request_groups == 2
    assert plan.generation.samples == (4, 5, 4, 5)
    assert plan.reward.samples == (2, 1, 2, 1)
    assert (plan.reference.mean, plan.train.mean, plan.weight_sync.mean) == (1, 5, 2)
    assert plan.advantages.mean == 0  # counted in training
    assert plan.other.samples == (3, 3)  # 17 less 6 of generation and 8 of the actor: the save, and gaps
    assert (measured.step_time, measured.wait_time, measured.staleness) == (17, 6, {0: 1.0})
    assert simulate(plan).step_time == pytest.approx(17.0)


@pytest.mark.parametrize(
    ("batch", "requests", "groups"), [(16, 16, 1), (16, 2, 8), (16, 1, 16), (16, 3, 4), (16, 20, 1), (7, 2, 1)]
)
def test_groups_of_a_request_divide_the_batch(batch: int, requests: float, groups: int) -> None:
    """Three engines share sixteen groups as 6, 5 and 5; a filter makes more requests than groups are trained."""
    assert _groups_of_a_request(batch, requests) == groups


def test_generation_does_not_contain_the_pause_of_a_weight_sync() -> None:
    timeline = [
        span("actor", "train", 0, 0, 1),
        *(
            entry
            for step, at in ((1, 100.0), (2, 200.0))
            for entry in (
                span("rollout", "generate", step, at, at + 10),
                span("reference", "ref_log_probs", step, at + 10, at + 12),
                span("reference", "ref_log_probs", step, at + 12, at + 13),
                span("advantages", "advantages", step, at + 13.5, at + 14),
                span("actor", "train", step, at + 1, at + 4),
                span("critic", "train", step, at + 1, at + 9),
                span("actor", "weight_sync", step, at + 4, at + 6),
            )
        ),
    ]
    metrics = [record(step, 9.0, 2.5, lag0=4, lag1=12) for step in range(3)]
    devices = {"rollout": 2, "reference": 1, "actor": 4, "actor_fwd": 0}
    measured = measure({"mode": "fully_async", **FACTS, "max_staleness": 1}, timeline, metrics, devices)
    assert measured.plan.generation.samples == (8, 8)
    assert measured.plan.reference.samples == (3, 3)  # both parts of a step
    assert [getattr(measured.plan, name).devices for name in ("generation", "reference", "train")] == [2, 1, 4]
    assert measured.plan.weight_sync.devices is None
    assert measured.plan.train.samples == (3, 3)  # the actor's, not the critic's
    assert measured.plan.handover.seconds == 0.5
    assert measured.plan.other.samples == (1.5, 1.5)  # 9 less 2.5 of waiting and 5 of the actor
    assert (measured.wait_time, measured.staleness) == (2.5, {0: 0.25, 1: 0.75})


def test_weights_that_are_pushed_every_second_step() -> None:
    timeline = [span("actor", "train", step, 10 * step, 10 * step + 4) for step in range(5)]
    timeline += [span("rollout", "generate", step, 10 * step, 10 * step + 1) for step in range(5)]
    timeline += [span("actor", "weight_sync", step, 10 * step + 4, 10 * step + 6) for step in (1, 3)]
    metrics = [record(step, 6.0, 0.0, lag1=4) for step in range(5)]
    measured = measure({"mode": "fully_async", **FACTS, "max_staleness": 1}, timeline, metrics)
    assert measured.plan.weight_sync.samples == (2, 0, 2, 0)


def test_runs_that_tell_too_little(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"not the directory of a finished run: it has no config\.yaml, timeline\.json"):
        read_run(tmp_path)
    with pytest.raises(PlanError, match="the run made 2 steps; timings need at least 3"):
        measure(
            {"mode": "colocate", **FACTS},
            [span("actor", "train", step, step, step + 1) for step in range(2)],
            [record(step, 1.0, 0.0) for step in range(2)],
        )
