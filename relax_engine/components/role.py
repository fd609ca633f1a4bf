"""What every role shares: a step counter, a stop flag, events, phases and the HTTP ingress.

A role is one Ray Serve deployment whose `run` is a loop over the stream. The controller deploys it,
starts `run`, and drains its events; nothing else reaches into a role.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fastapi import FastAPI, HTTPException

from relax_engine.access.guard import AccessGuard
from relax_engine.access.policy import AccessPolicy, install, installed
from relax_engine.config import RunConfig
from relax_engine.core.placement import Slot
from relax_engine.stream.client import StreamClient
from relax_engine.stream.errors import PartitionDroppedError
from relax_engine.utils.hooks import declare_code_paths
from relax_engine.utils.logging import redact_records
from relax_engine.utils.redact import redact_value
from relax_engine.utils.stacks import sample_stacks
from relax_engine.utils.waits import current_waits

PHASES_KEPT = 20_000
"""Phases that a role remembers: a few megabytes, whatever the length of the run."""


@dataclass(frozen=True, slots=True)
class RoleContext:
    """What the controller hands to a role."""

    config: RunConfig
    slots: Sequence[Slot]
    stream: StreamClient
    run_dir: str
    start_step: int
    num_steps: int
    resume_from: str | None = None
    """Checkpoint iteration directory to continue from."""
    weights_only: bool = False
    """Take the weights of `resume_from`, but neither optimizer nor random state."""
    run_state: Mapping[str, Any] = field(default_factory=dict)
    """What that checkpoint says about data position and versions."""
    run_id: str = ""
    """Of the run, for its checkpoints; the same after every restart of a part."""
    restarts: int = 0
    """How often this role was restarted in the run; above 0 the stream says what is left to do."""
    access: AccessPolicy | None = None
    """Who may call the role's API; without one it answers nobody."""


@dataclass(slots=True)
class Phase:
    """One stretch of work: seconds since the epoch, for Gantt charts and sums."""

    role: str
    name: str
    step: int
    start: float
    end: float


def busy_seconds(phases: Iterable[Phase]) -> dict[str, float]:
    """Length of the union of each `role/phase`'s intervals, so that a phase's time never exceeds the wall's."""
    spans: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for phase in phases:
        spans[f"{phase.role}/{phase.name}"].append((phase.start, phase.end))
    busy = {}
    for name, intervals in sorted(spans.items()):
        total, reached = 0.0, float("-inf")
        for start, end in sorted(intervals):
            total += max(0.0, end - max(start, reached))
            reached = max(reached, end)
        busy[name] = round(total, 3)
    return busy


class Role:
    """Base of all roles. Thread-safe: `run` works in threads, control calls come from the event loop."""

    role: ClassVar[str] = "role"

    def __init__(self, context: RoleContext) -> None:
        if context.access is not None:
            install(context.access)
        redact_records()
        declare_code_paths(context.config.access.user_code_paths)
        self.context = context
        self.config = context.config
        self.args = context.config.flat
        self.step = context.start_step
        self.phases: deque[Phase] = deque(maxlen=PHASES_KEPT)
        self._stop = threading.Event()
        self._events: deque[dict[str, Any]] = deque()
        self._new_phases: deque[tuple[str, int, float, float]] = deque(maxlen=PHASES_KEPT)
        self._progressed = time.time()
        self.stream = context.stream

    def get_step(self) -> dict[str, int]:
        """The step that this role works on."""
        return {"step": self.step}

    def set_step(self, step: int) -> dict[str, int]:
        """Move to `step` (recovery)."""
        if step < 0:
            raise HTTPException(400, f"step must be >= 0, got {step}")
        self.step = step
        return {"step": self.step}

    def stop_service(self) -> dict[str, str]:
        """Ask the loop to end after the present step."""
        self._stop.set()
        return {"status": "stopping"}

    def health(self) -> dict[str, Any]:
        """Processes, step, seconds since the last progress, what is waited for since when, and whether to stop."""
        return {
            "role": self.role,
            "processes": {"service": os.getpid(), **self.processes()},
            "step": self.step,
            "stopping": self._stop.is_set(),
            "restarts": self.context.restarts,
            "seconds_since_progress": round(time.time() - self._progressed, 3),
            "waiting": [{"for": what, "seconds": round(seconds, 3)} for what, seconds in current_waits()],
        }

    def processes(self) -> dict[str, int]:
        """Ids of the processes that the role owns, by name; a role without any has none."""
        return {}

    async def inspect(self) -> dict[str, Any]:
        """`health`, and stack samples of this process and of those it owns."""
        return {**self.health(), "stacks": {**sample_stacks(), **await self.inspect_owned()}}

    async def inspect_owned(self) -> dict[str, str]:
        """Stack samples of the processes that the role owns, by name; a role without any has none."""
        return {}

    def drain_events(self) -> list[dict[str, Any]]:
        """Events since the last call, oldest first; then, as one event, the phases that have ended since."""
        events = []
        while self._events:
            events.append(self._events.popleft())
        phases = []
        while self._new_phases:
            phases.append(self._new_phases.popleft())
        return [*events, {"kind": "phases", "role": self.role, "phases": phases}] if phases else events

    def outcome(self) -> dict[str, Any]:
        """What `run` returns: its latest phases, and whether it ended because it was asked to."""
        return {"phases": list(self.phases), "stopped": self.stopping}

    def phases_since(self, start: float) -> list[Phase]:
        """The phases that began at `start` (seconds since the epoch) or later."""
        return [phase for phase in self.phases if phase.start >= start]

    def emit(self, kind: str, **values: Any) -> None:
        """Tell the controller that something happened."""
        self._progressed = time.time()
        self._events.append({"kind": kind, "role": self.role, **redact_value(values)})

    @property
    def stopping(self) -> bool:
        """Whether the loop should end."""
        return self._stop.is_set()

    def record_phase(self, name: str, start: float) -> None:
        """Record work that began at `start` (seconds since the epoch) and ends now."""
        end = time.time()
        self.phases.append(Phase(self.role, name, self.step, start, end))
        self._new_phases.append((name, self.step, start, end))
        self._progressed = end

    async def work_through(self, task: str, part: Callable[[str, int], Awaitable[bool]]) -> None:
        """Call `part(partition, sequence)` for the deliveries of every partition, until each says that it was the last.

        A role that is started again goes on behind what `task` had committed. A partition that was trained meanwhile
        had everything that the role adds.
        """
        for rollout_id in range(self.context.start_step, self.context.num_steps):
            if self.stopping:
                return
            self.step = rollout_id
            partition = f"train_{rollout_id}"
            try:
                sequence = 1 + await asyncio.to_thread(self.stream.committed, task, partition)
                while await part(partition, sequence):
                    sequence += 1
            except PartitionDroppedError:
                if not self.context.restarts:
                    raise

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record how long a stretch of work takes."""
        start = time.time()
        try:
            yield
        finally:
            self.record_phase(name, start)


def ingress(cls: type[Role]) -> FastAPI:
    """The HTTP API that every role has: `get_step`, `set_step`, `stop_service`, `health`; all but the last by token."""
    app = FastAPI(title=f"relax {cls.role}", openapi_url="/openapi.json", docs_url=None, redoc_url=None)
    app.add_middleware(
        AccessGuard,
        token=lambda: installed().api_token,
        open_paths=("/health",),
        limit=lambda: installed().max_body_bytes,
    )
    app.get("/get_step")(cls.get_step)
    app.post("/set_step")(cls.set_step)
    app.post("/stop_service")(cls.stop_service)
    app.get("/health")(cls.health)
    return app
