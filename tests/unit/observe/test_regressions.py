"""When a watched metric counts as worse."""

import random

import pytest

from relax_engine.errors import ConfigError
from relax_engine.observe.regressions import Regression, Watched, regressions


def steps_told(name: str, values: list[float]) -> list[Regression]:
    watched = [Watched(name)]
    return [found for step, value in enumerate(values) for found in regressions(watched, step, {name: value, "x": 1.0})]


def test_a_fall_is_told_once() -> None:
    (found,) = steps_told("rollout/raw_reward", [0.6] * 20 + [0.1] * 30)
    assert found.best == pytest.approx(0.6)
    assert 20 <= found.step < 30
    assert found.now < 0.6


def test_what_is_better_when_lower_gets_worse_when_it_rises() -> None:
    (found,) = steps_told("perf/step_time", [1.0] * 20 + [3.0] * 20)
    assert found.best == pytest.approx(1.0)
    assert found.now > 1.0
    assert steps_told("perf/step_time", [3.0] * 20 + [1.0] * 20) == []


def test_it_is_told_again_after_it_had_recovered() -> None:
    assert len(steps_told("rollout/raw_reward", ([0.6] * 20 + [0.1] * 20) * 2)) == 2


def test_noise_is_no_regression() -> None:
    """Of ten runs of 200 steps around one value, hardly one is told of."""
    rng = random.Random(0)
    told = sum(bool(steps_told("rollout/raw_reward", [rng.gauss(0.5, 0.1) for _ in range(200)])) for _ in range(10))
    assert told <= 2


@pytest.mark.parametrize("name", ["train/lr", "nobody/knows"])
def test_a_metric_without_a_better_direction_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be watched"):
        Watched(name)
