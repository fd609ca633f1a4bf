"""Arrow columns as JSON text, a column at a time.

Each text equals `json.dumps(plain(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"))` of the value;
doing whole columns at once is what makes conversion fast.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from data_prep.flat import escaped, list_lengths, offsets_of


def plain(value: Any) -> Any:
    """A value of Parquet's as JSON can hold it; fields that are null (or not a number) are left out."""
    if isinstance(value, Mapping):
        fields = {str(key): plain(item) for key, item in value.items()}
        return {key: item for key, item in fields.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime.date | datetime.datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def dumps(value: Any) -> str:
    """The one way JSON is written into a column.

    Raises:
        ValueError: nested too deeply.
    """
    try:
        return json.dumps(plain(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    except RecursionError as error:
        raise ValueError("a value is nested too deeply to be written as JSON") from error


def json_objects(columns: Mapping[str, pa.Array]) -> pa.Array:
    """One JSON object per row, with the columns as its keys; values that are null are left out."""
    pieces = []
    for key in sorted(columns):
        text = json_texts(columns[key])
        text = pc.if_else(pc.equal(text, "null"), pa.scalar(None, pa.string()), text)
        pieces.append(pc.binary_join_element_wise(f",{json.dumps(key, ensure_ascii=False)}:", text, ""))
    # Joined by "" and each with its own comma: Arrow's "skip" loses rows of which every piece is null.
    joined = pc.binary_join_element_wise(*pieces, "", null_handling="replace", null_replacement="")
    return pc.binary_join_element_wise("{", pc.ascii_ltrim(joined, ","), "}", "")


def json_texts(array: pa.Array) -> pa.Array:
    """The JSON text of every value; `null` of those that are null."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = _strings(array.cast(pa.string()))
    elif pa.types.is_boolean(kind):
        text = pc.if_else(array, "true", "false")
    elif pa.types.is_integer(kind):
        text = array.cast(pa.string())
    elif pa.types.is_list(kind):
        text = _lists(array)
    elif pa.types.is_struct(kind) and kind.num_fields:
        names = [kind.field(number).name for number in range(kind.num_fields)]
        objects = json_objects(dict(zip(names, array.flatten(), strict=True)))
        text = pc.if_else(array.is_valid(), objects, pa.scalar(None, pa.string()))
    else:  # numbers with a point, times, bytes and what else is rare
        text = pa.array([dumps(value) for value in array.to_pylist()], pa.string())
    return text.fill_null("null")


def _strings(array: pa.Array) -> pa.Array:
    text = escaped(array)
    if text is None:
        return pa.array([None if value is None else dumps(value) for value in array.to_pylist()], pa.string())
    return pc.binary_join_element_wise('"', text, '"', "")


def _lists(array: pa.Array) -> pa.Array:
    """Joins the texts of each list's values; `flatten` leaves out what stands under null lists."""
    values = json_texts(array.flatten())
    offsets = offsets_of(list_lengths(array))
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, values), ",")
    text = pc.binary_join_element_wise("[", joined, "]", "")
    return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string()))
