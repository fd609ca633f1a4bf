"""OpenAI's chat layout: `messages` whose content is text or a list of parts, tool calls, and optionally `tools`.

The label is the column `label`, `answer`, `ground_truth` or `solution`; without one, the last message, which must be
the assistant's, is the answer to learn. Media parts become placeholders, tool calls the text
`<tool_call>{"name": ..., "arguments": ...}</tool_call>` that chat templates of the Hermes kind make of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from data_prep.formats.common import label, messages, require, rest, structured_label
from data_prep.formats.media import MEDIA_COLUMNS, media_of
from data_prep.formats.options import ColumnOptions
from data_prep.json_rows import Row
from data_prep.json_text import dumps, plain
from data_prep.schema import AUDIOS, IMAGES, PLACEHOLDERS, VIDEOS, Record

LABELS = ("label", "answer", "ground_truth", "solution")
_ROLES = {"developer": "system", "function": "tool"}
_MEDIA_PARTS = {
    "image_url": IMAGES,
    "image": IMAGES,
    "input_image": IMAGES,
    "video_url": VIDEOS,
    "video": VIDEOS,
    "audio_url": AUDIOS,
    "audio": AUDIOS,
    "input_audio": AUDIOS,
}


def convert(row: Row, options: ColumnOptions) -> Record:
    """One conversation as a record.

    Raises:
        ValueError: the row does not follow the layout, with the reason.
    """
    require(row, "messages")
    if not isinstance(row["messages"], list):
        raise ValueError(f"messages is {type(row['messages']).__name__}, expected a list")
    media = media_of(row)
    chat = [message_text(message, position, media) for position, message in enumerate(row["messages"])]
    metadata = rest(row, "messages", *LABELS, *MEDIA_COLUMNS)
    return Record(*prompt_and_label(chat, row), metadata, media)


def prompt_and_label(chat: list[dict[str, str]], row: Row) -> tuple[list[dict[str, str]], str]:
    """A conversation and its label: the row's, or the assistant's last message, which then leaves the prompt.

    Raises:
        ValueError: there is no label, or what is left is no prompt.
    """
    named = next((row[name] for name in LABELS if row.get(name) is not None), None)
    if named is not None:
        if chat and chat[-1]["role"] == "assistant":
            chat = chat[:-1]
        return messages(chat), structured_label(named)
    if not chat or chat[-1]["role"] != "assistant":
        raise ValueError(f"no label: none of the columns {', '.join(LABELS)}, and the last message is no assistant's")
    return messages(chat[:-1]), label(chat[-1]["content"])


def message_text(message: Any, position: int, media: dict[str, list[Any]]) -> dict[str, str]:
    """A message with its content as text; media it holds are appended to `media`."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValueError(f"message {position} has no role")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, position, media) for part in content if part is not None)
    elif content is None and message.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise ValueError(f"message {position} has content of type {type(content).__name__}, expected text or parts")
    calls = [tool_call(call.get("function") or call, position) for call in message.get("tool_calls") or []]
    role = str(message["role"])
    return {"role": _ROLES.get(role, role), "content": "\n".join(filter(None, [content, *calls]))}


def tool_call(function: Any, position: int) -> str:
    """A call as text; arguments that are JSON text become the object they stand for."""
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"message {position} has a tool call without a name")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"message {position}: arguments of {function['name']!r} are not JSON: {error}") from error
    body = f'{{"name": {dumps(function["name"])}, "arguments": {json.dumps(plain(arguments), ensure_ascii=False)}}}'
    return f"<tool_call>\n{body}\n</tool_call>"


def _part(part: Any, position: int, media: dict[str, list[Any]]) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise ValueError(f"message {position} has a part that is {type(part).__name__}")
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        return str(part["text"])
    column = _MEDIA_PARTS.get(str(kind))
    if column is None:
        raise ValueError(f"message {position} has a part of type {kind!r:.40}")
    value = part.get(str(kind), part.get("image_url"))
    if value is None:  # `{"type": "image"}` alone points at the media columns
        return PLACEHOLDERS[column]
    media.setdefault(column, []).append(value)
    return PLACEHOLDERS[column]
