"""What can be wrong with a dataset, as errors that a user can act on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relax_engine.errors import RelaxError

MAX_ROWS_IN_MESSAGE = 5


class DataError(RelaxError):
    """A file cannot be read or converted as asked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that the data break.

    `rows` are examples, at most as many as the caller asked to keep: the row's number in the file, and the value or
    reason at fault. `count` is the number of all failing rows; 0 says that the file as a whole breaks the rule.
    """

    rule: str
    reason: str
    count: int = 0
    rows: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        if not self.count:
            return f"{self.rule}: {self.reason}"
        shown = "; ".join(f"row {row}: {detail}" for row, detail in self.rows[:MAX_ROWS_IN_MESSAGE])
        more = self.count - min(len(self.rows), MAX_ROWS_IN_MESSAGE)
        rows = "1 row" if self.count == 1 else f"{self.count} rows"
        return f"{self.rule}: {self.reason}, in {rows} ({shown}{f'; {more} more' if more else ''})"


class DataValidationError(DataError):
    """Rows or columns break the rules of the training data; the message lists them with reasons."""

    def __init__(self, path: str, findings: Sequence[Finding]) -> None:
        self.path = path
        self.findings = tuple(findings)
        rules = "rule" if len(findings) == 1 else "rules"
        listing = "".join(f"\n  - {finding}" for finding in findings)
        super().__init__(f"{path} breaks {len(findings)} {rules} of the training data:{listing}")

    def __reduce__(self) -> tuple[type[DataValidationError], tuple[str, tuple[Finding, ...]]]:
        return type(self), (self.path, self.findings)
