"""What validation sees of each row, and what it reports."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_prep.errors import DataValidationError, Finding

OK = "ok"


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One rule of the suite, how many rows it looked at, how many broke it, and whether that is too many."""

    rule: str
    description: str
    checked: int
    failed: int
    ok: bool


@dataclass(slots=True)
class ValidationReport:
    """What was checked and found.

    `stats` holds figures of the data (rows, label lengths in characters, prompt lengths in tokens, rows by source);
    `docs` is the folder with the data documentation as HTML, if one was asked for. `bad` are the rows that break any
    rule, with the first reason; their numbers count over all files.
    """

    path: str
    rows: int
    rules: list[RuleResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    docs: Path | None = None
    bad: dict[int, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether no rule is broken."""
        return not self.findings

    def raise_if_failed(self) -> None:
        """Raise the findings.

        Raises:
            DataValidationError: a rule is broken.
        """
        if self.findings:
            raise DataValidationError(self.path, self.findings)


@dataclass(slots=True)
class RowFacts:
    """What the rules look at, one entry per row: small values, never the prompts themselves.

    A prompt that is none has no number of tokens; without a tokenizer the list stays empty. `flags` are the columns of
    further rules: `ok`, or what is wrong with the row.
    """

    row: list[int] = field(default_factory=list)
    id: list[str | None] = field(default_factory=list)
    prompt: list[str] = field(default_factory=list)
    label: list[str] = field(default_factory=list)
    label_length: list[int] = field(default_factory=list)
    prompt_tokens: list[int | None] = field(default_factory=list)
    data_source: Counter[str] = field(default_factory=Counter)
    scripts: Counter[str] = field(default_factory=Counter)
    flags: dict[str, list[str]] = field(default_factory=dict)
    keys: array[int] = field(default_factory=lambda: array("Q"))
    """64-bit hashes of the prompts."""
    signatures: list[Any] = field(default_factory=list)
    """MinHash signatures, where near-duplicates are asked for."""
