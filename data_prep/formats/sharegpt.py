"""ShareGPT's layout: `conversations` of `{from, value}`, optionally `system`, `tools` and media columns.

The last turn, which must be the model's, is the answer to learn, unless a label column says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_prep.formats.common import require, rest
from data_prep.formats.media import MEDIA_COLUMNS, media_of
from data_prep.formats.openai import LABELS, prompt_and_label
from data_prep.formats.options import ColumnOptions
from data_prep.json_rows import Row
from data_prep.schema import Record

_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
    "function_response": "tool",
}


def convert(row: Row, options: ColumnOptions) -> Record:
    """One conversation as a record.

    Raises:
        ValueError: the row does not follow the layout, with the reason.
    """
    require(row, "conversations")
    if not isinstance(row["conversations"], list):
        raise ValueError(f"conversations is {type(row['conversations']).__name__}, expected a list")
    chat = [_message(turn, position) for position, turn in enumerate(row["conversations"])]
    system = row.get("system")
    if system:
        chat.insert(0, {"role": "system", "content": system})
    metadata = rest(row, "conversations", "system", *LABELS, *MEDIA_COLUMNS)
    return Record(*prompt_and_label(chat, row), metadata, media_of(row))


def _message(turn: Any, position: int) -> dict[str, str]:
    if not isinstance(turn, Mapping):
        raise ValueError(f"turn {position} is {type(turn).__name__}, expected {{from, value}}")
    speaker, text = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if not isinstance(speaker, str) or speaker not in _ROLES:
        raise ValueError(f"turn {position} is from {speaker!r:.40}, expected one of {', '.join(_ROLES)}")
    if not isinstance(text, str):
        raise ValueError(f"turn {position} has a value of type {type(text).__name__}, expected text")
    if speaker == "function_call":
        text = f"<tool_call>\n{text}\n</tool_call>"
    return {"role": _ROLES[speaker], "content": text}
