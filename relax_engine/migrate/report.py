"""What became of every setting of a recipe.

What lives here: the four outcomes, the report and its two forms. What does not: deciding an outcome (`verl`, `slime`).
"""

from __future__ import annotations

import enum
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any


class Status(enum.StrEnum):
    """What became of a setting."""

    MAPPED = "mapped"
    DEFAULTED = "defaulted"
    NOT_NEEDED = "not needed"
    NEEDS_YOU = "needs you"


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting of the source: its value as text, the flags it became, and why.

    A `defaulted` entry was not in the source: the source's own default differs from ours and is written out.
    """

    key: str
    value: str
    status: Status
    target: str = ""
    reason: str = ""


@dataclass(slots=True)
class Report:
    """The account of one migration: settings, proposed changes, the doctor's findings, and what else was made."""

    recipe: str
    framework: str
    entries: list[Entry] = field(default_factory=list)
    proposals: list[str] = field(default_factory=list)
    findings: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Entries by status, every status present."""
        found = Counter(entry.status.value for entry in self.entries)
        return {status.value: found[status.value] for status in Status}

    @property
    def given(self) -> int:
        """Settings that the source gives."""
        return sum(entry.status is not Status.DEFAULTED for entry in self.entries)

    @property
    def settled(self) -> int:
        """Given settings that need nobody: mapped, or not needed for a reason."""
        return sum(entry.status in (Status.MAPPED, Status.NOT_NEEDED) for entry in self.entries)

    def to_json(self) -> str:
        """The report as JSON."""
        content: dict[str, Any] = asdict(self) | {"counts": self.counts()}
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    def to_markdown(self) -> str:
        """The report for people, what needs them first."""
        counts = self.counts()
        lines = [
            f"# {self.recipe}: from {self.framework}",
            "",
            ", ".join(f"{counts[name]} {name}" for name in counts),
            "",
        ]
        for status in (Status.NEEDS_YOU, Status.MAPPED, Status.DEFAULTED, Status.NOT_NEEDED):
            chosen = [entry for entry in self.entries if entry.status is status]
            if chosen:
                lines += [
                    f"## {status.value.capitalize()}",
                    "",
                    "| setting | value | becomes | reason |",
                    "|---|---|---|---|",
                ]
                lines += [_row(entry) for entry in chosen]
                lines.append("")
        sections = [("Proposed changes", self.proposals), ("Also", self.notes)]
        sections += [(f"`relax doctor`, {mode}", found) for mode, found in self.findings.items()]
        for title, items in sections:
            if items:
                lines += [f"## {title}", "", *(f"- {item}" for item in items), ""]
        return "\n".join(lines)


def _row(entry: Entry) -> str:
    cells = [f"`{entry.key}`", entry.value and f"`{entry.value}`", entry.target and f"`{entry.target}`", entry.reason]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
