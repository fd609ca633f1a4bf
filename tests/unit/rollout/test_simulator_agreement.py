"""The simulator's model of fully-async mode against the real gate, window and stream tables, step by step."""

import random
from collections import Counter

import pytest
from simulated_pipeline import Pipeline

from relax_engine.simulation import Plan
from relax_engine.simulation.pipeline import Pipeline as Model
from relax_engine.simulation.timing import Draws

STEPS, PER_STEP = 40, 8


@pytest.mark.parametrize("train_time", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("staleness", range(4))
@pytest.mark.parametrize("slots", [None, 5])
def test_steps_end_at_the_same_times_with_the_same_lags(staleness: int, train_time: float, slots: int | None) -> None:
    times = [random.Random(seed).expovariate(1.0) for seed in range((STEPS + staleness + 2) * PER_STEP)]
    real = Pipeline(staleness, PER_STEP, times.__getitem__, train_time, slots=slots or 10**6).run(STEPS)
    plan = Plan(
        rollout_batch_size=PER_STEP, max_staleness=staleness, generation=times, train=train_time, concurrency=slots
    )
    seen = Model(plan, Draws(seed=0)).run(STEPS)
    assert [step.end for step in seen.steps] == pytest.approx(real.ends)
    assert sum((step.lags for step in seen.steps), Counter()) == real.lags
