"""Our Parquet layout: what a row of training data is, and the version of that promise.

| column          | type                              | meaning                                                       |
|-----------------|-----------------------------------|---------------------------------------------------------------|
| `id`            | string                            | unique: first 12 hex digits of `source_digest`, `-`, the row  |
| `prompt`        | list<struct<role, content>>       | chat messages, the last of them the user's                    |
| `label`         | string                            | ground truth for the reward, or the answer to learn           |
| `metadata`      | string                            | JSON object: `data_source`, `ability`, `extra_info`, ...      |
| `source_digest` | string                            | SHA-256 of the file the row came from                         |
| `source_row`    | int64                             | its row number there, from 0                                  |

`metadata` is JSON text because its keys differ from dataset to dataset, while a Parquet column has one type.
Provenance holds a content digest and no path: the same bytes give the same output wherever they lie.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1
VERSION_KEY, FORMAT_KEY = b"relax.schema_version", b"relax.source_format"
PROMPT, LABEL, METADATA, ID = "prompt", "label", "metadata", "id"
COLUMNS = (ID, PROMPT, LABEL, METADATA, "source_digest", "source_row")

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Record:
    """What a converter makes of one source row."""

    prompt: list[dict[str, str]]
    label: str
    metadata: dict[str, Any]


@cache
def arrow_schema(source_format: str) -> pa.Schema:
    """The Arrow schema, with the layout's version and the source format in its key-value metadata."""
    import pyarrow as pa

    message = pa.struct([pa.field("role", pa.string()), pa.field("content", pa.string())])
    return pa.schema(
        [
            pa.field(ID, pa.string(), nullable=False),
            pa.field(PROMPT, pa.list_(message), nullable=False),
            pa.field(LABEL, pa.string(), nullable=False),
            pa.field(METADATA, pa.string(), nullable=False),
            pa.field("source_digest", pa.string(), nullable=False),
            pa.field("source_row", pa.int64(), nullable=False),
        ],
        metadata={VERSION_KEY: str(SCHEMA_VERSION).encode(), FORMAT_KEY: source_format.encode()},
    )


def to_table(records: Sequence[tuple[Record, str, int]], source_format: str) -> pa.Table:
    """Rows (record, source digest, source row) as a table of `arrow_schema`."""
    import pyarrow as pa

    rows = [
        {
            ID: f"{digest[:12]}-{row}",
            PROMPT: record.prompt,
            LABEL: record.label,
            METADATA: json.dumps(record.metadata, ensure_ascii=False, sort_keys=True, separators=(",", ":")),
            "source_digest": digest,
            "source_row": row,
        }
        for record, digest, row in records
    ]
    return pa.Table.from_pylist(rows, schema=arrow_schema(source_format))


def prompt_defect(prompt: Any) -> str | None:
    """Why a prompt cannot be trained on, or None if it can.

    Accepts non-empty text, or chat messages with known roles and text content, the last of them from the user (or a
    tool's answer).
    """
    if isinstance(prompt, str):
        return None if prompt.strip() else "the prompt is empty"
    if not isinstance(prompt, list):
        return f"the prompt is {type(prompt).__name__}, expected text or a list of messages"
    if not prompt:
        return "the prompt has no messages"
    for position, message in enumerate(prompt):
        if not isinstance(message, dict):
            return f"message {position} is {type(message).__name__}, expected {{role, content}}"
        if message.get("role") not in ROLES:
            return f"message {position} has role {message.get('role')!r}, expected one of {', '.join(ROLES)}"
        content = message.get("content")
        if not isinstance(content, str):
            return f"message {position} has content of type {type(content).__name__}, expected text"
    if prompt[-1]["role"] not in ("user", "tool"):
        return f"the last message is from {prompt[-1]['role']!r}, expected 'user'"
    if not prompt[-1]["content"].strip():
        return "the last message is empty"
    return None


def label_defect(label: Any) -> str | None:
    """Why a label cannot be used, or None if it can: it must be non-empty text."""
    if label is None:
        return "the label is missing"
    if not isinstance(label, str):
        return f"the label {label!r:.60} is {type(label).__name__}, not a string"
    return None if label.strip() else "the label is an empty string"
