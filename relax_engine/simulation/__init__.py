"""A planner: discrete events from phase times to step time, utilization and staleness.

What lives here: models of the three modes, made of the engine's own placement window where it has a part in them.
What does not: anything that runs a model.
"""

from __future__ import annotations

from relax_engine.simulation.measured import MeasuredRun, read_run
from relax_engine.simulation.plan import Plan, PlanError
from relax_engine.simulation.result import SimulationResult
from relax_engine.simulation.run import simulate
from relax_engine.simulation.suggest import Suggestion, suggest
from relax_engine.simulation.timing import Timing

__all__ = [
    "MeasuredRun",
    "Plan",
    "PlanError",
    "SimulationResult",
    "Suggestion",
    "Timing",
    "read_run",
    "simulate",
    "suggest",
]
