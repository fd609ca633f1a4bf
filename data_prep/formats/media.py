"""Finding the media columns of a row. What an item holds is settled later (`data_prep.media`)."""

from __future__ import annotations

from typing import Any

from data_prep.json_rows import Row
from data_prep.schema import AUDIOS, IMAGES, VIDEOS

MEDIA_COLUMNS = {
    "preprocessed_images": IMAGES,
    "images": IMAGES,
    "image": IMAGES,
    "videos": VIDEOS,
    "video": VIDEOS,
    "audios": AUDIOS,
    "audio": AUDIOS,
}
"""Names that datasets use -> our column. The first that is filled counts."""


def media_of(row: Row) -> dict[str, list[Any]]:
    """The row's media as they stand, by column of ours."""
    found: dict[str, list[Any]] = {}
    for name, column in MEDIA_COLUMNS.items():
        value = row.get(name)
        if value and column not in found:
            found[column] = list(value) if isinstance(value, list | tuple) else [value]
    return found
