"""`simulate`: one plan, one result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax_engine.simulation.pipeline import Pipeline
from relax_engine.simulation.plan import Plan, PlanError
from relax_engine.simulation.result import SimulationResult, summarize
from relax_engine.simulation.timing import Draws
from relax_engine.simulation.turns import take_turns


def simulate(plan: Plan | Mapping[str, Any] | str | Path, *, steps: int = 100, seed: int = 0) -> SimulationResult:
    """Simulate a run of `steps` steps from its phase times.

    `plan` is a `Plan`, its fields, or a file of them. The same plan and seed give the same result. The start of the
    run, in which the pipeline fills, is left out of the means: two steps for each version of staleness.

    Raises:
        PlanError: the plan describes no run, or too few steps remain.
    """
    plan = Plan.of(plan)
    warmup = 2 * (math.ceil(plan.max_staleness) + 1)
    if steps <= warmup:
        raise PlanError(
            f"steps={steps}: the first {warmup} steps of max_staleness={plan.max_staleness:g} are left out of the "
            f"means; simulate at least {warmup + 1}"
        )
    draws = Draws(seed)
    seen = take_turns(plan, steps, draws) if plan.mode == "colocate" else Pipeline(plan, draws).run(steps)
    return summarize(seen, warmup)
