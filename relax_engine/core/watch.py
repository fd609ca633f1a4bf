"""The controller's eye on the roles: what they report, which of them fell silent, and whether anything moves at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relax_engine.core.failure import RoleError
from relax_engine.core.service import Service
from relax_engine.stream.client import StreamClient
from relax_engine.stream.errors import StreamError
from relax_engine.utils.redact import redact

_ANSWER_S = 10.0
_SILENT_S = 120.0


@dataclass(slots=True)
class Watch:
    """Asked once per second.

    A role is silent when it has not answered for two minutes. Nothing moves when no role has reported an event or
    finished a stretch of work for `progress_timeout_s`.
    """

    services: Mapping[str, Service]
    stream: StreamClient
    run_dir: Path
    progress_timeout_s: float
    _heard: dict[str, float] = field(default_factory=dict)
    _moved: float = field(default_factory=time.monotonic)

    async def events(self, names: list[str]) -> list[dict[str, Any]]:
        """What the named roles report; one that does not answer is asked again the next time."""
        answers = await asyncio.gather(
            *(self.services[name].events(_ANSWER_S) for name in names), return_exceptions=True
        )
        events: list[dict[str, Any]] = []
        now = time.monotonic()
        for name, answer in zip(names, answers, strict=True):
            self._heard.setdefault(name, now)
            if not isinstance(answer, BaseException):
                self._heard[name] = now
                events += answer
        if events:
            self._moved = now
        return events

    def forget(self, name: str) -> None:
        """The role is started anew; its silence begins again."""
        self._heard.pop(name, None)
        self._moved = time.monotonic()

    def silent(self) -> dict[str, RoleError]:
        """Roles that have not answered for too long, and the error for each."""
        now = time.monotonic()
        return {
            name: RoleError(f"role {name!r} has not answered for {now - heard:.0f} s", interrupted=True)
            for name, heard in self._heard.items()
            if now - heard > _SILENT_S
        }

    async def require_progress(self) -> None:
        """Do nothing while something moves.

        Raises:
            RoleError: nothing has moved for too long; says what each role waits for, and where its stacks are.
        """
        if time.monotonic() - self._moved < self.progress_timeout_s:
            return
        reports = await self._reports()
        idle = [report["seconds_since_progress"] for report in reports.values() if "seconds_since_progress" in report]
        if idle and min(idle) < self.progress_timeout_s:
            self._moved = time.monotonic() - min(idle)
            return
        path = self.run_dir / "standstill.txt"
        path.write_text(redact(await self._dump(reports)))
        lines = "\n".join(f"  {name}: {_summary(report)}" for name, report in reports.items())
        raise RoleError(
            f"no role has made progress for {self.progress_timeout_s:g} s (--progress-timeout):\n{lines}\n"
            f"(stacks and the state of the stream: {path})",
            interrupted=True,
        )

    async def _reports(self) -> dict[str, dict[str, Any]]:
        calls = [service.call("inspect", deadline_s=2 * _ANSWER_S) for service in self.services.values()]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return {
            name: {"silent": str(answer)} if isinstance(answer, BaseException) else answer
            for name, answer in zip(self.services, answers, strict=True)
        }

    async def _dump(self, reports: Mapping[str, dict[str, Any]]) -> str:
        try:
            state = await asyncio.to_thread(self.stream.describe, deadline_s=_ANSWER_S)
        except StreamError as error:
            state = str(error)
        parts = [f"== stream\n{state}\n"]
        for name, report in reports.items():
            stacks = "".join(f"-- {what}\n{stack}" for what, stack in report.get("stacks", {}).items())
            parts.append(f"== {name}: {_summary(report)}\n{stacks}")
        return "\n".join(parts)


def _summary(report: Mapping[str, Any]) -> str:
    """One line about a role."""
    if "silent" in report:
        return report["silent"]
    waits = [f"{wait['for']} for {wait['seconds']:.1f} s" for wait in report["waiting"]]
    return (
        f"step {report['step']}, no progress for {report['seconds_since_progress']:.1f} s, "
        f"waits for {', '.join(waits) or 'nothing that it would say'}"
    )
