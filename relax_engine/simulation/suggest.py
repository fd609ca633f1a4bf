"""How to divide devices among roles: candidates ranked by a bound, the best of them simulated."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from relax_engine.simulation.plan import ROLES, Plan, PlanError
from relax_engine.simulation.result import SimulationResult
from relax_engine.simulation.run import simulate

_SIMULATED = 12
_STEPS = 40


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A division of the devices, and what comes of it."""

    mode: str
    resource: dict[str, int]
    result: SimulationResult


def suggest(plan: Plan, devices: int, *, unit: int = 1, seed: int = 0) -> list[Suggestion]:
    """Divisions of `devices` devices for the plan's mode, the fastest first, and colocate on all of them.

    Roles get multiples of `unit` (devices of an engine or of a model-parallel group), and at least one; a role without
    work gets none. `bound` ranks all divisions; the best twelve are simulated.

    Raises:
        PlanError: fewer devices than roles.
    """
    roles = [role for role in ROLES[plan.mode] if role in ("rollout", "actor") or getattr(plan, role).mean]
    if devices // unit < len(roles):
        raise PlanError(
            f"{devices} devices in units of {unit} are too few for {plan.mode}: {', '.join(roles)} need one unit each"
        )
    splits = [dict(zip(roles, counts, strict=True)) for counts in _compositions(devices // unit, len(roles))]
    candidates = [plan.replace(resource={role: count * unit for role, count in split.items()}) for split in splits]
    candidates = sorted(candidates, key=bound)[:_SIMULATED]
    if plan.mode != "colocate":
        candidates.append(plan.replace(mode="colocate", max_staleness=0, resource={"actor": devices}))
    found = [
        Suggestion(candidate.mode, candidate.resource, simulate(candidate, steps=_STEPS, seed=seed))
        for candidate in candidates
    ]
    return sorted(found, key=lambda suggestion: suggestion.result.step_time)


def bound(plan: Plan) -> float:
    """Seconds that a step cannot be shorter than.

    The work of the busiest role; and, since a slot is taken from a group's admission to the end of its step, the time
    of that way divided by the `max_staleness + 1` steps that slots allow to be under way.
    """

    def seconds(phase: str, role: str) -> float:
        timing = getattr(plan, phase)
        return float(timing.mean * timing.scale(plan.devices(role)))

    request = seconds("generation", "rollout")
    rounds = plan.rollout_batch_size / plan.request_groups / plan.slots if plan.slots else 0.0
    apart = plan.mode == "fully_async"
    forward = [seconds(role, role if apart else "actor") for role in ("actor_fwd", "reference")]
    actor = sum(seconds(phase, "actor") for phase in ("train", "weight_sync", "other"))
    if not apart:
        actor += sum(forward) + seconds("advantages", "actor")
    if plan.mode == "colocate":
        return request * max(rounds, 1.0) + actor
    way = request + actor + (max(forward) if apart else 0.0)
    return max(request * rounds, actor, *forward, way / (plan.max_staleness + 1.0))


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as a sum of `parts` positive numbers, in order."""
    for cuts in itertools.combinations(range(1, total), parts - 1):
        yield tuple(stop - start for start, stop in itertools.pairwise((0, *cuts, total)))
