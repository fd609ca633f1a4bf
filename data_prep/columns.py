"""Whole columns judged at once: whether every prompt and label in them is one.

What lives here: the same rules as `schema.prompt_defect` and `schema.label_defect`, answered for a batch with a single
yes or no. Rows of a batch that is told no are looked at one by one, which also finds the reasons.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.arrow_values import number_column, text_column, text_scalar
from data_prep.flat import holds_nul, list_lengths, offsets_of, starts_visibly
from data_prep.limits import CELL_BYTES
from data_prep.schema import MESSAGE, ROLES

_VISIBLE = r"[^\s\x0b\x1c-\x1f\x{85}\p{Z}]"


def is_text(kind: pa.DataType) -> bool:
    """Whether values of that type are strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def usable_texts(array: Any) -> bool:
    """Whether every value is text with something to see in it, without NUL, and not too long."""
    if not is_text(array.type) or array.null_count:
        return False
    array = array.cast(pa.string())
    visible = starts_visibly(array) or bool(pc.all(pc.match_substring_regex(array, _VISIBLE)).as_py())
    return visible and clean_texts(array)


def clean_texts(array: Any) -> bool:
    """Whether no value holds a NUL or is too long; the bytes must be UTF-8."""
    if array.null_count or not is_text(array.type):
        return False
    if len(array) and pc.max(pc.binary_length(array)).as_py() > CELL_BYTES:
        return False
    return not holds_nul(array.cast(pa.string()))


def chat_prompts(array: Any) -> Any | None:
    """A prompt column as one of our message lists, or None if any prompt in it cannot be trained on as it is."""
    if array.null_count or not pa.types.is_list(array.type) or not pa.types.is_struct(array.type.value_type):
        return None
    messages = array.flatten()
    lengths = list_lengths(array)
    if messages.null_count or not (lengths > 0).all():
        return None
    columns = {field.name: column for field, column in zip(messages.type, messages.flatten(), strict=True)}
    roles, contents = columns.pop("role", None), columns.pop("content", None)
    if roles is None or contents is None or any(column.null_count < len(column) for column in columns.values()):
        return None
    if not is_text(roles.type) or not pc.all(pc.is_in(roles, text_column(*ROLES).cast(roles.type))).as_py():
        return None
    last = number_column(lengths.cumsum() - 1)
    enders = pc.is_in(roles.take(last), text_column("user", "tool").cast(roles.type))
    if not pc.all(enders).as_py() or not clean_texts(contents) or not usable_texts(contents.take(last)):
        return None
    message = pa.StructArray.from_arrays([roles.cast(pa.string()), contents.cast(pa.string())], fields=list(MESSAGE))
    return pa.ListArray.from_arrays(offsets_of(lengths), message)


def user_prompts(array: Any) -> Any | None:
    """A column of questions as message lists of one user's message each, or None if any is unusable."""
    if not usable_texts(array):
        return None
    roles = pa.repeat(text_scalar("user"), len(array))
    message = pa.StructArray.from_arrays([roles, array.cast(pa.string())], fields=list(MESSAGE))
    return pa.ListArray.from_arrays(offsets_of(np.ones(len(array), np.int32)), message)
