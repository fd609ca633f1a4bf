"""Calls to a stream that carry no rows: its state, the admission gate, the ends of steps.

What lives here: one method a call, each with its deadline. What does not: rows (`client.py`).
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Sequence
from typing import Any

import ray

from relax_engine.stream.delivery import PartitionInfo, ProducerState, StreamStats
from relax_engine.stream.rpc import aask, ask, server_wait

CALL_S = 30.0
WAIT_S = 600.0


class StreamCalls:
    """The part of a `StreamClient` that needs the controller alone."""

    def __init__(self, controller: ray.actor.ActorHandle, units: Sequence[ray.actor.ActorHandle]) -> None:
        self._controller = controller
        self._units = list(units)

    def stats(self, *, deadline_s: float = CALL_S) -> StreamStats:
        """The accounting now."""
        return self._ask("stats", deadline_s=deadline_s)

    def partitions(self, *, deadline_s: float = CALL_S) -> list[PartitionInfo]:
        """Live partitions, oldest first."""
        return self._ask("partitions", deadline_s=deadline_s)

    def describe(self, *, deadline_s: float = CALL_S) -> str:
        """Live partitions and missing groups in words, for a report."""
        return self._ask("describe", deadline_s=deadline_s)

    def processes(self, *, deadline_s: float = CALL_S) -> dict[str, Any]:
        """Process ids and holdings: `controller` is a pid, `units` the report of each storage unit.

        A process that is being started again is waited for.
        """
        pid = self._ask("pid", deadline_s=deadline_s)
        reports = [
            ask(functools.partial(_report, unit), deadline_s, "report()", f"storage unit {number}")
            for number, unit in enumerate(self._units)
        ]
        return {"controller": pid, "units": reports}

    def wait_partition(self, partition: str, state: str = "exists", *, deadline_s: float = WAIT_S) -> None:
        """Wait until the partition `exists`, is `sealed` or was `dropped` (a later state counts too).

        Raises:
            StreamTimeoutError: names the live partitions.
        """
        if state not in ("exists", "sealed", "dropped"):
            raise ValueError(f"state must be exists, sealed or dropped, got {state!r}")
        self._wait("wait_partition", partition, state, deadline_s=deadline_s)

    # -- admission ---------------------------------------------------------------------------

    def admit(self, groups: int, *, deadline_s: float = WAIT_S) -> list[int]:
        """Numbers (`group_index`) for new groups, when the staleness budget has slots for all of them.

        Raises:
            StreamTimeoutError: names the groups that keep the slots, since when, on which engine.
        """
        return self._wait("admit", groups, uuid.uuid4().hex, deadline_s=deadline_s)

    async def aadmit(self, groups: int, *, deadline_s: float = WAIT_S) -> list[int]:
        """`admit` for asyncio callers."""
        return await self._await("admit", groups, uuid.uuid4().hex, deadline_s=deadline_s)

    def withdraw(self, *, deadline_s: float = CALL_S) -> ProducerState:
        """Take over from a producer that is gone.

        Groups it was admitted for and never put are admitted again first, under the same numbers;
        its waiting calls end with an error. Returns what is there already.
        """
        return self._ask("withdraw", deadline_s=deadline_s)

    def assign(self, groups: Sequence[int], engine: str) -> None:
        """Say which engine generates the groups; for messages only, so nothing is awaited."""
        self._controller.assign.remote(list(groups), engine)

    def finish_step(
        self,
        partition: str,
        *,
        version: int | None = None,
        dropped_stale: int = 0,
        retain: bool = False,
        deadline_s: float = CALL_S,
    ) -> StreamStats:
        """After an optimizer step and its weight sync: set the gate to `version` and end the partition as trained.

        With `retain` it can still be taken, by the same deliveries, until a step that is finished
        without. One call, because it is made at every step. Returns the accounting after it.
        """
        return self._ask("finish_step", partition, version, dropped_stale, retain, deadline_s=deadline_s)

    def gate_state(self, *, deadline_s: float = CALL_S) -> dict[str, Any]:
        """The gate's part of a checkpoint; see `AdmissionGate.state`."""
        return self._ask("gate_state", deadline_s=deadline_s)

    def recover_gate(
        self,
        version: int,
        *,
        next_group: int | None = None,
        pending: Sequence[int] = (),
        deadline_s: float = CALL_S,
    ) -> None:
        """Rebuild the gate for a run that continues at `version`; see `AdmissionGate.recover`."""
        self._ask("recover_gate", version, next_group, list(pending), deadline_s=deadline_s)

    def close(self) -> None:
        """End the stream for everybody: its controller and storage units, and with them all rows."""
        for actor in (self._controller, *self._units):
            ray.kill(actor)

    def _ask(self, method: str, *args: Any, deadline_s: float) -> Any:
        return ask(lambda _: getattr(self._controller, method).remote(*args), deadline_s, _describe(method, args))

    def _wait(self, method: str, *args: Any, deadline_s: float) -> Any:
        """A call that waits in the controller: its last argument is how long it may."""
        call = getattr(self._controller, method)
        return ask(lambda left: call.remote(*args, server_wait(left)), deadline_s, _describe(method, args))

    async def _await(self, method: str, *args: Any, deadline_s: float) -> Any:
        call = getattr(self._controller, method)
        return await aask(lambda left: call.remote(*args, server_wait(left)), deadline_s, _describe(method, args))


def _describe(method: str, args: Sequence[Any]) -> str:
    """A call for messages: its name and the first plain arguments."""
    return f"{method}({', '.join(map(str, args[:3]))})"


def _report(unit: ray.actor.ActorHandle, _: float) -> ray.ObjectRef:
    return unit.report.remote()
