"""verl's layout: `prompt` (chat messages), `reward_model.ground_truth`, `data_source`, `ability`, `extra_info`.

Source: verl's documentation, "Prepare data for post-training" (fields of the RL Parquet).
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping
from typing import Any

from data_prep.readers import Row
from data_prep.schema import Record, label_defect, prompt_defect

COLUMNS = ("prompt", "reward_model")
MEDIA = ("images", "videos", "audios")


def convert(row: Row) -> Record:
    """One verl row as a record; everything but prompt and ground truth goes into the metadata.

    Raises:
        ValueError: the row does not follow the layout, with the reason.
    """
    media = [column for column in MEDIA if row.get(column)]
    if media:
        raise ValueError(f"column {media[0]!r} holds media; only text rows can be converted")
    missing = [column for column in COLUMNS if row.get(column) is None]
    if missing:
        raise ValueError(f"column {missing[0]!r} is missing or null")
    prompt = row["prompt"]
    if isinstance(prompt, list):
        prompt = [_message(message) for message in prompt]
    elif isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    reward_model = row["reward_model"]
    if not isinstance(reward_model, Mapping) or "ground_truth" not in reward_model:
        raise ValueError("reward_model has no field ground_truth")
    label = reward_model["ground_truth"]
    defect = prompt_defect(prompt) or label_defect(label)
    if defect:
        raise ValueError(defect)
    metadata = {key: _plain(value) for key, value in row.items() if key not in (*COLUMNS, *MEDIA) and value is not None}
    style = reward_model.get("style")
    if style is not None:
        metadata["reward_style"] = style
    return Record(prompt, label, metadata)


def _message(message: Any) -> Any:
    """A message without the empty fields that a Parquet struct adds."""
    return {key: value for key, value in message.items() if value is not None} if isinstance(message, dict) else message


def _plain(value: Any) -> Any:
    """A value of Parquet's as JSON can hold it; fields that are null in this row are left out."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime.date | datetime.datetime):
        return value.isoformat()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
