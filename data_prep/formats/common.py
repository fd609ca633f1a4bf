"""What several source layouts share: messages, labels, and the columns that go to the metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_prep.json_text import dumps
from data_prep.schema import label_defect, prompt_defect


def require(row: Mapping[str, Any], *columns: str) -> None:
    """Raise `ValueError` for the first column that is missing or null."""
    for column in columns:
        if row.get(column) is None:
            raise ValueError(f"column {column!r} is missing or null")


def rest(row: Mapping[str, Any], *used: str) -> dict[str, Any]:
    """The columns that were not used and are not null."""
    return {key: value for key, value in row.items() if key not in used and value is not None}


def messages(prompt: Any) -> list[dict[str, str]]:
    """A prompt as our messages: text becomes the user's, empty fields that a Parquet struct adds are left out.

    Raises:
        ValueError: it cannot be trained on.
    """
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    elif isinstance(prompt, list):
        prompt = [rest(message) if isinstance(message, Mapping) else message for message in prompt]
    defect = prompt_defect(prompt) or _further_fields(prompt)
    if defect:
        raise ValueError(defect)
    return list(prompt)


def _further_fields(prompt: list[dict[str, str]]) -> str | None:
    for position, message in enumerate(prompt):
        further = sorted(message.keys() - {"role", "content"})
        if further:
            return f"message {position} has the field {further[0]!r}; convert such rows with --format openai"
    return None


def label(value: Any) -> str:
    """A label that is text.

    Raises:
        ValueError: it is not, or empty.
    """
    defect = label_defect(value)
    if defect:
        raise ValueError(defect)
    return str(value)


def structured_label(value: Any) -> str:
    """A label that is text, or JSON text of a list or object (several right answers, test cases).

    Raises:
        ValueError: neither, or empty.
    """
    return label(dumps(value) if isinstance(value, list | dict) and value else value)
