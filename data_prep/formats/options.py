"""What a user may say about the columns of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """Names of the columns that hold the prompt and the label, for layouts that do not fix them."""

    prompt: str | None = None
    label: str | None = None
