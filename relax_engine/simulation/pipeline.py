"""Fully-async and hybrid mode: a trainer that takes what the engines and the forward roles hand on."""

from __future__ import annotations

import itertools
from collections import Counter

from relax_engine.simulation.clock import Clock, Process, Signal
from relax_engine.simulation.engines import Engines
from relax_engine.simulation.observations import Observations
from relax_engine.simulation.plan import Plan
from relax_engine.simulation.timing import Draws

_FORWARD = ("actor_fwd", "reference")


class Pipeline:
    """Processes around the engines. In hybrid mode the trainer does the forward passes itself, part by part.

    They go on for ever, so that the last steps that are looked at are like those before.
    """

    def __init__(self, plan: Plan, draws: Draws) -> None:
        self.plan, self.draws = plan, draws
        self.clock = Clock()
        self.seen = Observations()
        self.engines = Engines(plan, self.clock, self.seen, draws)
        self.hybrid = plan.mode == "hybrid"
        self.roles = () if self.hybrid else tuple(role for role in _FORWARD if getattr(plan, role).mean)
        self.forwarded: dict[str, Counter[int]] = {role: Counter() for role in self.roles}
        self.with_advantages: Counter[int] = Counter()
        self.changed = Signal()
        self.syncing = False
        self.synced = Signal()

    def run(self, steps: int) -> Observations:
        """Simulate until `steps` steps have ended."""
        for role in self.roles:
            self.clock.start(self._forward(role))
        if not self.hybrid:
            self.clock.start(self._advantages())
        self.clock.start(self._train())
        self.engines.admit()
        self.clock.run(lambda: len(self.seen.steps) == steps)
        return self.seen

    def _seconds(self, phase: str, role: str, groups: int) -> float:
        share = groups / self.plan.rollout_batch_size
        return share * self.draws.next(phase, getattr(self.plan, phase), self.plan.devices(role))

    def _hand_on(self, counts: Counter[int], partition: int, groups: int) -> None:
        """Let the next role see `groups` of a partition when they have arrived."""

        def arrive() -> None:
            counts[partition] = max(counts[partition], groups)
            self.changed.fire()

        self.clock.after(self.draws.next("handover", self.plan.handover), arrive)

    def _forward(self, role: str) -> Process:
        """A role that adds log-probs. `actor_fwd` takes part in weight syncs, between two parts."""
        for partition in itertools.count():
            done = 0
            while done < self.plan.rollout_batch_size:
                groups = self.engines.handed_on[partition] - done
                if not groups:
                    yield self.engines.changed
                elif role == "actor_fwd" and self.syncing:
                    yield self.synced
                else:
                    yield self.seen.work(role, role, self._seconds(role, role, groups))
                    done += groups
                    self._hand_on(self.forwarded[role], partition, done)

    def _advantages(self) -> Process:
        """Adds advantages to whole batches, or to each part where parts are trained as they come."""
        for partition in itertools.count():
            done = 0
            while done < self.plan.rollout_batch_size:
                ready = min(counts[partition] for counts in (*self.forwarded.values(), self.engines.handed_on))
                if ready == done or (not self.plan.streaming and ready < self.plan.rollout_batch_size):
                    yield self.changed if self.roles else self.engines.changed
                else:
                    seconds = self._seconds("advantages", "advantages", ready - done)
                    yield self.seen.work("advantages", "advantages", seconds)
                    done = ready
                    self._hand_on(self.with_advantages, partition, done)

    def _train(self) -> Process:
        source = self.engines.handed_on if self.hybrid else self.with_advantages
        signal = self.engines.changed if self.hybrid else self.changed
        batch = self.plan.rollout_batch_size
        for step in itertools.count():
            done, waited = 0, 0.0
            while done < batch:
                groups = source[step] - done
                if not groups or (not self.hybrid and not self.plan.streaming and groups < batch):
                    begun = self.clock.now
                    yield signal
                    waited += self.clock.now - begun
                    continue
                if self.hybrid:
                    for phase in _FORWARD:
                        yield self.seen.work("actor", phase, self._seconds(phase, "actor", groups))
                if self.plan.streaming:
                    yield self.seen.work("actor", "train", self._seconds("train", "actor", groups))
                done += groups
            if self.hybrid:
                yield self.seen.work("actor", "advantages", self._seconds("advantages", "actor", batch))
            if not self.plan.streaming:
                yield self.seen.work("actor", "train", self._seconds("train", "actor", batch))
            yield from self._publish(step, waited)

    def _publish(self, step: int, waited: float) -> Process:
        """Weights to the engines and to `actor_fwd`; then the step's slots are free."""
        batch = self.plan.rollout_batch_size
        self.engines.pause()
        self.syncing = True
        yield self.seen.work(
            "actor", "weight_sync", self._seconds("weight_sync", "actor", self.plan.rollout_batch_size)
        )
        self.syncing = False
        self.engines.resume(step + 1)
        self.synced.fire()
        yield self.seen.work("actor", "other", self._seconds("other", "actor", batch))
        groups = self.engines.contents.pop(step)
        self.seen.end_step(self.clock.now, waited, [step - self.engines.first_version.pop(group) for group in groups])
        self.engines.admit(released=len(groups))
