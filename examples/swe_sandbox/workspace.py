"""What the agent works on: a directory with a file of Python, edits of one line, and tests that run in the sandbox.

What lives here: the file, and what its tests say. What does not: the conversation (`agent`), and confining what the
model wrote (`relax_engine.rewards.sandbox`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from relax_engine.rewards.sandbox.limits import Limits
from relax_engine.rewards.sandbox.run import run_program

Test = tuple[str, Sequence[int], int]
"""A function, its arguments, and what it must return."""
FILE = "module.py"
LIMITS = Limits(cpu_s=1, wall_s=4.0, memory_mb=256, disk_mb=1)
NO_EDIT = "no edit"
_EDIT = re.compile(r"(\d{1,4}):(.*)", re.DOTALL)


class Workspace:
    """A directory with one file, which is as it was before an edit whose tests failed."""

    def __init__(self, directory: Path, source: str) -> None:
        directory.mkdir(parents=True)
        self.file = directory / FILE
        self.file.write_text(source)

    def attempt(self, edit: str, tests: Sequence[Test]) -> str | None:
        """Edit the file and run its tests; an edit that fails is taken back.

        Args:
            edit: `NUMBER:TEXT`, the line to replace, counted from 1, and what with.
            tests: Run in order, up to the first that fails.

        Returns:
            What is wrong, as the model is told; None if all tests pass.
        """
        before = self.file.read_text()
        lines, asked = before.split("\n"), _EDIT.fullmatch(edit)
        if asked is None or not 1 <= int(asked[1]) <= len(lines):
            return NO_EDIT
        lines[int(asked[1]) - 1] = asked[2]
        self.file.write_text("\n".join(lines))
        failure = self._failure(tests)
        if failure is not None:
            self.file.write_text(before)
        return failure

    def _failure(self, tests: Sequence[Test]) -> str | None:
        calls = [{"function": function, "arguments": arguments} for function, arguments, _ in tests]
        outcomes = run_program(self.file.read_text(), calls, LIMITS, stop_at_failure=True)
        for test, outcome in zip(tests, outcomes, strict=False):
            if outcome.ended != "exit":
                return report(test, None)
            if outcome.value != json.dumps(test[2]):
                return report(test, outcome.value)
        return None


def report(test: Test, value: str | None) -> str:
    """What the model is told of a test that returned something else, or, without a value, did not return.

    >>> report(("area", (7, 2), 14), "5")
    'area(7, 2) is 5, not 14'
    """
    function, arguments, wanted = test
    call = f"{function}({', '.join(map(str, arguments))})"
    return f"{call} fails" if value is None else f"{call} is {value[:8]}, not {wanted}"
