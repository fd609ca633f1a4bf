"""Our Parquet layout: what a row of training data is, and the version of that promise.

| column                     | type                        | meaning                                                   |
|----------------------------|-----------------------------|-----------------------------------------------------------|
| `id`                       | string                      | unique: 12 hex digits of `source_digest`, a dash, the row |
| `prompt`                   | list<struct<role, content>> | chat messages, the last of them the user's                |
| `label`                    | string                      | ground truth for the reward, or the answer to learn       |
| `metadata`                 | string                      | JSON object: `data_source`, `ability`, `extra_info`, ...  |
| `images` `videos` `audios` | list<struct<bytes, path>>   | media of the prompt, in the order of its placeholders     |
| `source_digest`            | string                      | SHA-256 of the file the row came from                     |
| `source_row`               | int64                       | its row number there, from 0                              |

Media columns exist only in datasets that have such media. `metadata` is JSON text because its keys differ from dataset
to dataset, while a Parquet column has one type. Provenance holds a content digest and no path: the same bytes give the
same output wherever they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from data_prep.arrow_values import text_scalar
from data_prep.json_text import dumps
from data_prep.limits import CELL_BYTES, MIB

SCHEMA_VERSION = 2
VERSION_KEY, FORMAT_KEY = b"relax.schema_version", b"relax.source_format"
ID, PROMPT, LABEL, METADATA, DIGEST, ROW = "id", "prompt", "label", "metadata", "source_digest", "source_row"
COLUMNS = (ID, PROMPT, LABEL, METADATA, DIGEST, ROW)

ROLES = ("system", "user", "assistant", "tool")
IMAGES, VIDEOS, AUDIOS = "images", "videos", "audios"
PLACEHOLDERS = {IMAGES: "<image>", VIDEOS: "<video>", AUDIOS: "<audio>"}

MESSAGE = pa.struct([pa.field("role", pa.string()), pa.field("content", pa.string())])
MEDIA_ITEM = pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])


@dataclass(frozen=True, slots=True)
class Record:
    """What a converter makes of one source row. `media` holds items as they were found, by column of ours."""

    prompt: list[dict[str, str]]
    label: str
    metadata: dict[str, Any]
    media: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Columns:
    """Converted rows as columns; `metadata` is JSON text. What `to_table` makes of records, a converter may make
    itself."""

    prompt: pa.Array
    label: pa.Array
    metadata: pa.Array


def arrow_schema(source_format: str, media: Sequence[str] = ()) -> pa.Schema:
    """The Arrow schema, with the layout's version and the source format in its key-value metadata."""
    return pa.schema(
        [
            pa.field(ID, pa.string(), nullable=False),
            pa.field(PROMPT, pa.list_(MESSAGE), nullable=False),
            pa.field(LABEL, pa.string(), nullable=False),
            pa.field(METADATA, pa.string(), nullable=False),
            *(pa.field(name, pa.list_(MEDIA_ITEM), nullable=False) for name in media),
            pa.field(DIGEST, pa.string(), nullable=False),
            pa.field(ROW, pa.int64(), nullable=False),
        ],
        metadata={VERSION_KEY: str(SCHEMA_VERSION).encode(), FORMAT_KEY: source_format.encode()},
    )


def to_columns(records: Sequence[Record], metadata: Sequence[str] | None = None) -> Columns:
    """Records as columns, without their media; `metadata` are their texts, where these were made before."""
    texts = [dumps(record.metadata) for record in records] if metadata is None else metadata
    return Columns(
        pa.array([record.prompt for record in records], pa.list_(MESSAGE)),
        pa.array([record.label for record in records], pa.string()),
        pa.array(texts, pa.string()),
    )


def to_table(
    columns: Columns, digest: str, numbers: pa.Array, schema: pa.Schema, media: Sequence[dict[str, list[Any]]] = ()
) -> pa.Table:
    """Converted rows of one file as a table of `arrow_schema`.

    Args:
        columns: the rows.
        digest: SHA-256 of their file.
        numbers: their numbers in it, int64.
        schema: from `arrow_schema`.
        media: for each row, its items `{bytes, path}` by column; may be empty if the schema has no media.
    """
    size = len(numbers)
    values: dict[str, pa.Array] = {
        ID: pa.compute.binary_join_element_wise(text_scalar(digest[:12]), numbers.cast(pa.string()), text_scalar("-")),
        PROMPT: columns.prompt,
        LABEL: columns.label.cast(pa.string()),
        METADATA: columns.metadata,
        DIGEST: pa.repeat(text_scalar(digest), size),
        ROW: numbers,
    }
    for name in schema.names:
        if name not in values:
            values[name] = pa.array([row.get(name) or [] for row in media], pa.list_(MEDIA_ITEM))
    return pa.Table.from_arrays([values[name] for name in schema.names], schema=schema)


def prompt_defect(prompt: Any) -> str | None:
    """Why a prompt cannot be trained on, or None if it can.

    Accepts non-empty text, or chat messages with known roles and text content, the last of them from the user (or a
    tool's answer).
    """
    if isinstance(prompt, str):
        return ("the prompt is empty" if not prompt.strip() else None) or text_defect(prompt, "the prompt")
    if not isinstance(prompt, list):
        return f"the prompt is {type(prompt).__name__}, expected text or a list of messages"
    if not prompt:
        return "the prompt has no messages"
    for position, message in enumerate(prompt):
        defect = _message_defect(message, position)
        if defect:
            return defect
    if prompt[-1]["role"] not in ("user", "tool"):
        return f"the last message is from {prompt[-1]['role']!r}, expected 'user'"
    if not prompt[-1]["content"].strip():
        return "the last message is empty"
    return None


def _message_defect(message: Any, position: int) -> str | None:
    if not isinstance(message, dict):
        return f"message {position} is {type(message).__name__}, expected {{role, content}}"
    if message.get("role") not in ROLES:
        return f"message {position} has role {message.get('role')!r:.40}, expected one of {', '.join(ROLES)}"
    content = message.get("content")
    if not isinstance(content, str):
        return f"message {position} has content of type {type(content).__name__}, expected text"
    return text_defect(content, f"message {position}")


def label_defect(label: Any) -> str | None:
    """Why a label cannot be used, or None if it can: it must be non-empty text."""
    if label is None:
        return "the label is missing"
    if not isinstance(label, str):
        return f"the label {label!r:.60} is {type(label).__name__}, not a string"
    return text_defect(label, "the label") if label.strip() else "the label is an empty string"


def text_defect(text: str, what: str) -> str | None:
    """Why text cannot be stored and tokenised: a NUL, half a surrogate pair, or more than any text has."""
    if len(text) > CELL_BYTES // 4:
        return f"{what} has {len(text)} characters, more than {CELL_BYTES // 4 // MIB} Mi"
    if "\0" in text:
        return f"{what} holds a NUL character at position {text.index(chr(0))}"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"{what} holds half a surrogate pair at position {error.start}"
    return None
