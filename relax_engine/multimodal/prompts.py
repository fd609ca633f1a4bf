"""Where media stand in a prompt: placeholders in texts, parts in messages, and the columns that hold the media.

What lives here: pairing them, without looking into any. What does not: decoding (`content`), tokens (`processor`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from data_prep.schema import AUDIOS, IMAGES, PLACEHOLDERS, VIDEOS
from relax_engine.multimodal.content import KINDS, MediaError
from relax_engine.multimodal.families import Kind
from relax_engine.types import Message

COLUMNS: Mapping[Kind, str] = {"image": IMAGES, "video": VIDEOS, "audio": AUDIOS}
_MARK = re.compile("|".join(re.escape(PLACEHOLDERS[COLUMNS[kind]]) for kind in KINDS))
_KIND_OF: Mapping[str, Kind] = {PLACEHOLDERS[COLUMNS[kind]]: kind for kind in KINDS}
_PARTS: Mapping[str, Kind] = {
    "image": "image", "image_url": "image", "input_image": "image", "video": "video", "video_url": "video",
    "audio": "audio", "audio_url": "audio", "input_audio": "audio",
}  # fmt: skip
"""Types of parts that are media, as chat formats name them."""


def media_parts(messages: Sequence[Message]) -> tuple[list[Message], dict[Kind, list[Any]]]:
    """Messages whose contents are texts or lists of parts of type `text`, `image`, `video` and `audio`, and the media
    that parts bring, in order.

    A placeholder in a text (`<image>`, `<video>`, `<audio>`) becomes a part, which brings nothing.

    Raises:
        MediaError: a part of an unknown type.
    """
    found: dict[Kind, list[Any]] = {}
    made = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, str) and not _MARK.search(content):
            made.append(message)
            continue
        parts: list[dict[str, Any]] = []
        for part in [content] if isinstance(content, str) else content or []:
            parts += _part(part, found)
        made.append({**message, "content": parts})
    return made, found


def _part(part: Any, found: dict[Kind, list[Any]]) -> list[dict[str, Any]]:
    """One part of a content as ours; what it brings goes to `found`."""
    text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
    if isinstance(part, str) or part.get("type") in ("text", "input_text", "output_text"):
        return _split(str(text or ""))
    kind = _PARTS.get(str(part.get("type")))
    if kind is None:
        raise MediaError(f"a part of type {part.get('type')!r}; there are text, {', '.join(_PARTS)}")
    value = next((part[name] for name in (str(part["type"]), kind, "url", "path", "data") if part.get(name)), None)
    if isinstance(value, Mapping):
        value = next((value[name] for name in ("url", "data", "path", "bytes", "base64") if value.get(name)), value)
    if value is not None:
        found.setdefault(kind, []).append(value)
    return [{"type": kind}]


def _split(text: str) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    position = 0
    for match in _MARK.finditer(text):
        parts += _text(text[position : match.start()])
        parts.append({"type": _KIND_OF[match.group()]})
        position = match.end()
    return parts + _text(text[position:])


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text else []


def marked(text: str, marker: Callable[[Kind], str]) -> str:
    """A text prompt with its placeholders as the model's tokenizer knows them."""
    return _MARK.sub(lambda match: marker(_KIND_OF[match.group()]), text)


def column_media(row: Mapping[str, Any], keys: Mapping[str, str]) -> dict[Kind, list[Any]]:
    """The media in a row's columns; `keys` is `--multimodal-keys`."""
    found: dict[Kind, list[Any]] = {}
    for kind in KINDS:
        value = row.get(keys[kind]) if kind in keys else None
        if value is None:
            continue
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        if items:
            found[kind] = items
    return found
