"""Images, audio and video frames of recorded samples: small files beside the tables, each content once.

What lives here: from what a sample carries to files, within a bound on their size. What does not: what samples carry
and why (`relax_engine.multimodal`), showing files (`relax_engine.observe.ui`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
import re
import wave
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

DIRECTORY = "media"
"""Below `rollouts` in the run directory."""

CONTENT_TYPES = MappingProxyType(
    {
        "png": "image/png",
        "jpg": "image/jpeg",
        "gif": "image/gif",
        "webp": "image/webp",
        "wav": "audio/wav",
        "mp3": "audio/mpeg",
        "ogg": "audio/ogg",
        "flac": "audio/flac",
    }
)
"""Kinds of files that are kept, by their ending. None of them can hold a script."""

FILE_NAME = re.compile(rf"[0-9a-f]{{32}}\.({'|'.join(CONTENT_TYPES)})")
FRAMES = 16
"""Frames of a video that are kept, evenly spaced."""

_LARGEST_BYTES = 32 * 2**20
_LONGEST_NAME = 4096
_STARTS = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "png"),
    (re.compile(rb"\xff\xd8\xff"), "jpg"),
    (re.compile(rb"GIF8[79]a"), "gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "webp"),
    (re.compile(rb"RIFF....WAVE", re.DOTALL), "wav"),
    (re.compile(rb"ID3|\xff[\xfb\xf3\xf2]"), "mp3"),
    (re.compile(rb"OggS"), "ogg"),
    (re.compile(rb"fLaC"), "flac"),
)


class MediaStore:
    """Files of one run, named by their content; used from one thread."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        """`most_bytes` is what all files together may take; those of an earlier process count."""
        self.directory = directory
        self.left_out = 0
        """Media of which no file was kept, because there was no room."""
        self._most = most_bytes
        self._held = sum(path.stat().st_size for path in directory.glob("*")) if directory.is_dir() else 0

    def describe(self, inputs: Mapping[str, Any] | None) -> list[dict[str, Any]] | None:
        """What the sample carries, in order: for each medium its `kind` (`image`, `video`, `audio`), the `files` that
        are kept of it, and where it was from (`source`: a path, a URL or its type). None where there is nothing."""
        if not inputs:
            return None
        media = []
        for name, values in inputs.items():
            kind = name.removesuffix("s")
            for value in values if isinstance(values, list) else [values]:
                parts = _frames(value) if kind == "video" else [value]
                kept = [file for part in parts if (file := self._keep(_content(part))) is not None]
                media.append({"kind": kind, "files": kept, "source": _source(value)})
        return media or None

    def _keep(self, content: bytes | None) -> str | None:
        """Name of the file with this content; None where it is no kind that is kept, or there is no room."""
        ending = None if content is None else file_type(content)
        if content is None or ending is None:
            return None
        name = f"{hashlib.sha256(content).hexdigest()[:32]}.{ending}"
        path = self.directory / name
        if path.exists():
            return name
        if len(content) > _LARGEST_BYTES or self._held + len(content) > self._most:
            self.left_out += 1
            return None
        self.directory.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(content)
        os.replace(temporary, path)
        self._held += len(content)
        return name


def file_type(content: bytes) -> str | None:
    """The ending for what the bytes are, whatever they are called; None for kinds that are not kept."""
    return next((ending for start, ending in _STARTS if start.match(content)), None)


def _frames(value: Any) -> Sequence[Any]:
    frames = value.get("frames") if isinstance(value, Mapping) else value
    if not isinstance(frames, list | tuple | np.ndarray):
        return [value]
    chosen = np.linspace(0, len(frames) - 1, min(FRAMES, len(frames))).round().astype(int)
    return [frames[index] for index in chosen]


def _content(value: Any) -> bytes | None:
    """The bytes of a medium: of a data URI, a local file, a picture or a waveform in memory; None for a URL."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _of_text(value)
    if isinstance(value, np.ndarray) or hasattr(value, "getpixel"):
        return _png(value)
    if isinstance(value, Mapping) and value.get("array") is not None:
        value = (value["array"], value.get("sampling_rate"))
    if isinstance(value, tuple) and len(value) == 2 and value[1]:
        return _wav(np.asarray(value[0], np.float32), int(value[1]))
    return None


def _of_text(text: str) -> bytes | None:
    if text.startswith("data:"):
        try:
            return base64.b64decode(text.partition(",")[2], validate=True)
        except binascii.Error:
            return None
    if len(text) > _LONGEST_NAME or "://" in text:
        return None
    path = Path(text)
    return path.read_bytes() if path.is_file() and path.stat().st_size <= _LARGEST_BYTES else None


def _png(value: Any) -> bytes | None:
    from PIL import Image

    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8 or value.ndim not in (2, 3):
            return None
        value = Image.fromarray(value)
    stream = io.BytesIO()
    value.convert("RGB").save(stream, format="PNG", compress_level=1)
    return stream.getvalue()


def _wav(waveform: np.ndarray, rate: int) -> bytes:
    """16-bit PCM of a waveform between -1 and 1, `[samples]` or `[channels, samples]`."""
    channels = np.atleast_2d(waveform)
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(len(channels))
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(channels.T, -1, 1) * 32767).astype("<i2").tobytes())
    return stream.getvalue()


def _source(value: Any) -> str:
    """Where a medium is from, in a few words."""
    if isinstance(value, str):
        return value.partition(",")[0] if value.startswith("data:") else value[:_LONGEST_NAME]
    return type(value).__name__
