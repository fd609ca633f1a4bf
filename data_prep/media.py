"""Images, videos and audio of a row: from whatever a dataset holds to bytes that decode.

What lives here: taking items apart (bytes, paths, URLs, base64), staying inside the dataset's folder, and the checks.
What does not: where a row keeps its media (`formats.media`).
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import wave
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.files import is_remote, open_file
from data_prep.limits import CELL_BYTES, IMAGE_PIXELS, MIB
from data_prep.schema import AUDIOS, IMAGES, PLACEHOLDERS, VIDEOS

MediaItem = dict[str, Any]
"""`{"bytes": bytes | None, "path": str | None}`: without bytes, `path` is a URL that was not fetched."""

_MAGIC = {
    AUDIOS: ((0, b"ID3"), (0, b"\xff\xfb"), (0, b"\xff\xf3"), (0, b"fLaC"), (0, b"OggS"), (4, b"ftyp")),
    VIDEOS: ((4, b"ftyp"), (0, b"\x1a\x45\xdf\xa3"), (8, b"AVI "), (0, b"\x00\x00\x01\xba"), (0, b"GIF8")),
}
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]{64,}={0,2}\s*")  # shorter strings, and those with a dot, are names


@dataclass(frozen=True, slots=True)
class MediaReader:
    """Reads media items. `root` is the only folder that paths may lead into; URLs are fetched only if `fetch`."""

    root: Path | None
    fetch: bool = False

    def read(self, column: str, value: Any) -> MediaItem:
        """One item of a media column, checked.

        Raises:
            ValueError: it cannot be had, leads out of the dataset, is too large, or does not decode; says which.
        """
        item = self._item(value)
        content = item["bytes"]
        if content is None:
            return item
        if len(content) > CELL_BYTES:
            raise ValueError(f"it has {len(content)} bytes, more than {CELL_BYTES // MIB} MiB")
        defect = _image_defect(content) if column == IMAGES else _stream_defect(column, content)
        if defect:
            raise ValueError(defect)
        return item

    def _item(self, value: Any) -> MediaItem:
        if isinstance(value, bytes):
            return {"bytes": value, "path": None}
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            if isinstance(value.get("bytes"), bytes):
                path = value.get("path")
                return {"bytes": value["bytes"], "path": Path(path).name if isinstance(path, str) else None}
            if isinstance(value.get("base64"), str):
                return {"bytes": _decode(value["base64"]), "path": None}
            for key in ("path", "url", "image", "image_url", "video", "video_url", "audio", "input_audio", "data"):
                if value.get(key) is not None:
                    return self._item(value[key])
        raise ValueError(f"{value!r:.60} is neither bytes, a path, a URL nor base64")

    def _text(self, text: str) -> MediaItem:
        if text.startswith("data:"):
            head, _, body = text.partition(",")
            if not head.endswith(";base64"):
                raise ValueError(f"data URL {head!r:.60} is not base64")
            return {"bytes": _decode(body), "path": None}
        if is_remote(text) and not text.startswith("file://"):
            return {"bytes": _fetched(text) if self.fetch else None, "path": text}
        if _BASE64.fullmatch(text):
            return {"bytes": _decode(text), "path": None}
        return {"bytes": self._local(text.removeprefix("file://")), "path": text.removeprefix("file://")}

    def _local(self, name: str) -> bytes:
        if self.root is None:
            raise ValueError(f"path {name!r:.100} needs the dataset's folder; name it with --media-root")
        root = self.root.resolve()
        if "\0" in name:
            raise ValueError(f"path {name!r:.100} holds a NUL character")
        path = (root / name).resolve()
        if not path.is_relative_to(root):
            raise ValueError(f"path {name!r:.100} leads out of the dataset's folder")
        if not path.is_file():
            raise ValueError(f"file {name!r:.100} does not exist in the dataset's folder")
        with path.open("rb") as stream:
            return stream.read(CELL_BYTES + 1)


def read_all(reader: MediaReader, media: Mapping[str, list[Any]], text: str) -> dict[str, list[MediaItem]]:
    """A row's media, after its placeholders were counted in the prompt's `text`.

    Raises:
        ValueError: an item is unusable, or there are more or fewer placeholders than items.
    """
    for column, items in media.items():
        mark = PLACEHOLDERS[column]
        count = text.count(mark)
        if count != len(items):
            raise ValueError(f"the prompt has {count} {mark} for {len(items)} {column}")
    found: dict[str, list[MediaItem]] = {}
    for column, items in media.items():
        found[column] = []
        for position, value in enumerate(items):
            try:
                found[column].append(reader.read(column, value))
            except (ValueError, OSError) as error:
                raise ValueError(f"{column}[{position}]: {error}") from error
    return found


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r:.60} is not base64: {error}") from error


def _fetched(url: str) -> bytes:
    with open_file(url) as stream:
        return stream.read(CELL_BYTES + 1)


def _image_defect(content: bytes) -> str | None:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > IMAGE_PIXELS:
                return f"it has {image.width} x {image.height} pixels, more than an image can honestly have"
            image.draft("L", (64, 64))  # a JPEG decodes at an eighth of its size, which shows damage as well
            image.load()
    # Pillow's plug-ins raise almost anything on damaged files.
    except Exception as error:  # noqa: BLE001
        return f"it does not decode as an image: {type(error).__name__}: {error}"[:200]
    return None


def _stream_defect(column: str, content: bytes) -> str | None:
    if column == AUDIOS and content[:4] == b"RIFF" and content[8:12] == b"WAVE":
        try:
            with wave.open(io.BytesIO(content)) as sound:
                return None if sound.getnframes() else "it is a WAV file without samples"
        except (wave.Error, EOFError) as error:
            return f"it does not decode as a WAV file: {error}"
    if any(content[at : at + len(magic)] == magic for at, magic in _MAGIC[column]):
        return None
    return f"it is no known kind of {column.removesuffix('s')}: it begins with {content[:8]!r}"
