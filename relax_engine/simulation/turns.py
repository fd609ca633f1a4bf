"""Colocate mode: generation, log-probs, training and weight sync in turn on the same devices."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from relax_engine.simulation.observations import Observations
from relax_engine.simulation.plan import Plan
from relax_engine.simulation.timing import Draws

_AFTER_GENERATION = ("actor_fwd", "reference", "advantages", "train", "weight_sync", "other")


@dataclass(slots=True)
class _Request:
    """One request: when it was started first, and how long it still takes."""

    version: int
    left: float


def take_turns(plan: Plan, steps: int, draws: Draws) -> Observations:
    """Simulate `steps` steps.

    A step starts `over_sampling_batch_size` groups and generates until `rollout_batch_size` are finished and scored.
    The others go on in the next step with what they have (`partial_rollout`), or start again.
    """
    seen = Observations()
    devices = plan.devices("actor")
    wanted = plan.rollout_batch_size // plan.request_groups
    started = (plan.over_sampling_batch_size or plan.rollout_batch_size) // plan.request_groups
    now = 0.0
    kept: list[_Request] = []
    for step in range(steps):
        fresh = started - len(kept)
        requests = kept + [_Request(step, draws.next("generation", plan.generation, devices)) for _ in range(fresh)]
        ends = _ends(requests, plan.slots or len(requests))
        scored = sorted((end + draws.next("reward", plan.reward), index) for index, end in enumerate(ends))
        duration = scored[wanted - 1][0]
        taken = {index for _, index in scored[:wanted]}
        now += seen.work("rollout", "generation", duration)
        for phase in _AFTER_GENERATION:
            now += seen.work("actor", phase, draws.next(phase, getattr(plan, phase), devices))
        seen.end_step(now, duration, [step - requests[index].version for index in taken] * plan.request_groups)
        kept = []
        for index, request in enumerate(requests):
            if plan.partial_rollout and index not in taken:
                # One that had no slot yet has all of its time left.
                kept.append(_Request(request.version, max(0.0, min(request.left, ends[index] - duration))))
    return seen


def _ends(requests: list[_Request], slots: int) -> list[float]:
    """When each request ends, `slots` at a time, in order."""
    free = [0.0] * min(slots, len(requests))
    ends = []
    for request in requests:
        ends.append(heapq.heappop(free) + request.left)
        heapq.heappush(free, ends[-1])
    return ends
