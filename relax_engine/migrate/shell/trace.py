"""What evaluating a script gives, and how control leaves a place in it.

What lives here: plain data and exceptions. What does not: evaluation (`interpreter`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from relax_engine.migrate.shell.expand import Variables


@dataclass(frozen=True, slots=True)
class Invocation:
    """One command that would run."""

    argv: tuple[str, ...]
    script: str
    line: int


@dataclass(slots=True)
class Trace:
    """What evaluating a script gave: its commands in order, its variables, and files it sources that were not there."""

    invocations: list[Invocation] = field(default_factory=list)
    variables: Variables = field(default_factory=Variables)
    missing: list[str] = field(default_factory=list)


class ExitScript(Exception):
    """`exit`."""


class ReturnFromFunction(Exception):
    """`return`, with its status; None where it is unknown."""

    def __init__(self, status: int | None) -> None:
        """Return this status."""
        self.status = status


class LoopControl(Exception):
    """`break`, or `continue` with `again`."""

    def __init__(self, *, again: bool) -> None:
        """Go on with the loop or not."""
        self.again = again
