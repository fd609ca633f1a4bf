"""verl's layout: `prompt` (chat messages), `reward_model.ground_truth`, `data_source`, `ability`, `extra_info`, media.

Source: verl's documentation, "Prepare data for post-training" (fields of the RL Parquet).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from data_prep.arrow_values import text_scalar
from data_prep.columns import chat_prompts, usable_texts, user_prompts
from data_prep.formats.common import messages, require, rest, structured_label
from data_prep.formats.media import MEDIA_COLUMNS, media_of
from data_prep.formats.options import ColumnOptions
from data_prep.json_rows import Row
from data_prep.json_text import json_objects
from data_prep.schema import Columns, Record

COLUMNS = ("prompt", "reward_model")
_KNOWN = {"ground_truth", "style"}


def convert(row: Row, options: ColumnOptions) -> Record:
    """One verl row as a record; everything but prompt, ground truth and media goes into the metadata.

    Raises:
        ValueError: the row does not follow the layout, with the reason.
    """
    require(row, *COLUMNS)
    reward_model = row["reward_model"]
    if not isinstance(reward_model, Mapping) or "ground_truth" not in reward_model:
        raise ValueError("reward_model has no field ground_truth")
    metadata = rest(row, *COLUMNS, *MEDIA_COLUMNS)
    if reward_model.get("style") is not None:
        metadata["reward_style"] = reward_model["style"]
    further = rest(reward_model, *_KNOWN)
    if further:
        metadata["reward_model"] = further
    return Record(messages(row["prompt"]), structured_label(reward_model["ground_truth"]), metadata, media_of(row))


def convert_columns(batch: pa.RecordBatch) -> Columns | None:
    """A batch of text rows at once, as `convert` would one by one; None if some row is not plainly good."""
    columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
    prompt, reward_model = columns.pop("prompt"), columns.pop("reward_model")
    if columns.keys() & MEDIA_COLUMNS or reward_model.null_count or not pa.types.is_struct(reward_model.type):
        return None
    rewards = dict(zip((field.name for field in reward_model.type), reward_model.flatten(), strict=True))
    if rewards.keys() - _KNOWN or "ground_truth" not in rewards or not usable_texts(rewards["ground_truth"]):
        return None
    prompts = user_prompts(prompt) if pa.types.is_string(prompt.type) else chat_prompts(prompt)
    if prompts is None:
        return None
    if "style" in rewards and rewards["style"].null_count < len(prompt):
        if rewards["style"].null_count:
            return None
        columns["reward_style"] = rewards["style"]
    metadata = json_objects(columns) if columns else pa.repeat(text_scalar("{}"), len(prompt))
    return Columns(prompts, rewards["ground_truth"], metadata)
