"""No trained sample exceeds `max_staleness`, the bound is reached, and nothing is produced to be dropped.

The proofs are in `docs/design/admission.md`; here the real parts run against them on a simulated clock.
"""

import random
from collections.abc import Callable

import pytest
from simulated_pipeline import Pipeline

PER_STEP = 8
STALENESS = range(5)


def constant(rng: random.Random) -> float:
    return 1.0


def exponential(rng: random.Random) -> float:
    return rng.expovariate(1.0)


def pareto(rng: random.Random) -> float:
    """Shape 1.2: infinite variance, one group in a hundred takes 46 times the least."""
    return rng.paretovariate(1.2)


def drawn(distribution: Callable[[random.Random], float], seed: int) -> Callable[[int], float]:
    """A time for each group number, whatever the order in which they are asked for."""
    return lambda group: distribution(random.Random(1000 * seed + group))


@pytest.mark.parametrize("train_time", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("distribution", [constant, exponential, pareto])
@pytest.mark.parametrize("staleness", STALENESS)
def test_no_trained_sample_exceeds_the_bound_and_none_is_dropped(
    staleness: int, distribution: Callable[[random.Random], float], train_time: float
) -> None:
    """Fast and slow trainers, many and few engine slots, with a filter that refuses a fifth of the groups."""
    for seed, slots in enumerate((3, PER_STEP, 10**6)):
        pipeline = Pipeline(
            staleness,
            PER_STEP,
            drawn(distribution, seed),
            train_time,
            slots=slots,
            refused=lambda group: random.Random(group).random() < 0.2,
        ).run(steps=60)
        assert max(pipeline.lags) <= staleness
        assert pipeline.dropped == 0
        assert sum(pipeline.lags.values()) == 60 * PER_STEP


@pytest.mark.parametrize("staleness", STALENESS)
def test_a_slow_trainer_drives_every_sample_to_the_bound(staleness: int) -> None:
    """The adversarial schedule: everything is generated before the trainer comes to it."""
    pipeline = Pipeline(staleness, PER_STEP, drawn(constant, 0), train_time=100.0).run(steps=20)
    # The first B groups are all of version 0 and trained at versions 0 .. S; all later ones wait S versions.
    expected = {lag: PER_STEP for lag in range(staleness)} | {staleness: (20 - staleness) * PER_STEP}
    assert pipeline.lags == expected


@pytest.mark.parametrize("staleness", STALENESS)
def test_one_slow_group_reaches_the_bound_alone(staleness: int) -> None:
    """A group that ends just before its deadline, in a pipeline that is otherwise fresh.

    Fillers take 0.1, a step 1: with `PER_STEP` slots the engines work on what the trainer needs next, and group 0,
    admitted at version 0, ends while version `staleness` waits for it.
    """
    pipeline = Pipeline(
        staleness, PER_STEP, lambda group: staleness + 0.5 if group == 0 else 0.1, 1.0, slots=PER_STEP
    ).run(steps=staleness + 3)
    assert max(pipeline.lags) == staleness


@pytest.mark.parametrize("staleness", STALENESS[1:])
def test_equal_speeds_drop_nothing_and_overlap(staleness: int) -> None:
    """Generation and training both take 1: a step takes 1, not 2, and every sample is used."""
    pipeline = Pipeline(staleness, PER_STEP, drawn(constant, 0), train_time=1.0).run(steps=40)
    assert pipeline.dropped == 0
    assert pipeline.step_time == pytest.approx(1.0)
    assert sum(pipeline.lags.values()) == 40 * PER_STEP


def test_on_policy_takes_the_sum_of_both_times() -> None:
    assert Pipeline(0, PER_STEP, drawn(constant, 0), train_time=1.0).run(steps=40).step_time == pytest.approx(2.0)


def test_a_slow_group_does_not_stall_training_before_its_deadline() -> None:
    """Group 0 takes 2.9 where a step takes 1 and others 0.1: with bound 3 steps end at 1.1, 2.1, 3.1, 4.1."""
    slow = Pipeline(3, PER_STEP, lambda group: 2.9 if group == 0 else 0.1, train_time=1.0).run(steps=4)
    assert slow.ends == pytest.approx([1.1, 2.1, 3.1, 4.1])
    # First in, first out without look-ahead would have waited 2.9 before the first step.
