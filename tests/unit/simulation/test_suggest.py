"""Divisions of devices among roles."""

from typing import Any

import pytest

from relax_engine.simulation import Plan, PlanError, simulate, suggest
from relax_engine.simulation.suggest import bound

PLAN: dict[str, Any] = {
    "rollout_batch_size": 12,
    "max_staleness": 3,
    "generation": {"seconds": 1.0, "devices": 1, "fixed": 1.0},
    "concurrency": 1,
    "train": {"seconds": 12.0, "devices": 1},
}
"""A device generates one group a second, whatever the number of devices; training is 12 device-seconds a step."""


def test_devices_go_where_the_work_is() -> None:
    """12 / n for generation on n devices, 12 / m for training on m: equal at six and six."""
    best = next(item for item in suggest(Plan.of(PLAN), 12) if item.mode == "fully_async")
    assert best.resource == {"rollout": 6, "actor": 6}
    assert best.result.step_time == pytest.approx(2.0)


def test_forward_roles_get_devices_for_their_work_alone() -> None:
    best = next(
        item
        for item in suggest(Plan.of({**PLAN, "reference": {"seconds": 6.0, "devices": 1}}), 10)
        if item.mode == "fully_async"
    )
    assert best.resource == {"rollout": 4, "reference": 2, "actor": 4}
    assert best.result.step_time == pytest.approx(3.0)


def test_units_are_kept() -> None:
    assert all(count % 4 == 0 for item in suggest(Plan.of(PLAN), 32, unit=4) for count in item.resource.values())


def test_colocate_is_there_to_compare() -> None:
    """A long tail that devices do not shorten favours running ahead; on policy, a split leaves one side idle."""
    tail = {**PLAN, "generation": {"seconds": 12.0, "devices": 1, "fixed": 1.0}, "concurrency": 12}
    assert suggest(Plan.of(tail), 8)[0].mode == "fully_async"
    assert suggest(Plan.of({**PLAN, "max_staleness": 0}), 8)[0].mode == "colocate"


@pytest.mark.parametrize("mode", ["colocate", "fully_async", "hybrid"])
@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("concurrency", [None, 3])
def test_no_step_is_shorter_than_the_bound(mode: str, staleness: int, concurrency: int | None) -> None:
    plan = Plan.of(
        {
            "mode": mode,
            "rollout_batch_size": 12,
            "max_staleness": 0 if mode == "colocate" else staleness,
            "generation": 3.0,
            "concurrency": concurrency,
            "actor_fwd": 1.0,
            "reference": 2.5,
            "train": 4.0,
            "weight_sync": 0.5,
        }
    )
    assert simulate(plan, steps=40).step_time >= bound(plan) * (1 - 1e-9)


def test_too_few_devices() -> None:
    with pytest.raises(PlanError, match=r"2 devices in units of 2 are too few for fully_async: rollout, actor need"):
        suggest(Plan.of(PLAN), 2, unit=2)
