"""Arrow columns as JSON text, a column at a time.

Each text equals `json.dumps(plain(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"))` of the value;
doing whole columns at once is what makes conversion fast.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from data_prep.arrow_values import no_text, text_scalar
from data_prep.flat import escaped, list_lengths, offsets_of

DEEPEST = 200
"""Lists and objects within each other that are written: far below what any reader of JSON takes."""

_Piece: TypeAlias = "str | pa.Array"
"""A part of a row's text: the same for all rows, or a column of texts."""


def plain(value: Any, depth: int = 0) -> Any:
    """A value of Parquet's as JSON can hold it; fields that are null (or not a number) are left out.

    Raises:
        ValueError: nested deeper than `DEEPEST`.
    """
    if depth > DEEPEST:
        raise ValueError(f"a value is nested deeper than {DEEPEST} levels, too deep to be written as JSON")
    if isinstance(value, Mapping):
        fields = {str(key): plain(item, depth + 1) for key, item in value.items()}
        return {key: item for key, item in fields.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
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
        ValueError: nested deeper than `DEEPEST`.
    """
    return json.dumps(plain(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def json_objects(columns: Mapping[str, pa.Array]) -> pa.Array:
    """One JSON object per row, with the columns as its keys; values that are null are left out."""
    return _joined(_object_pieces(columns))


def _object_pieces(columns: Mapping[str, pa.Array]) -> list[_Piece]:
    """What an object's text is made of, in order, so that objects within objects are still copied once."""
    values = {key: _value_pieces(columns[key]) for key in sorted(columns)}
    if any(pieces is None for pieces in values.values()):
        return [_objects_with_gaps(columns)]
    pieces: list[_Piece] = []
    for key, value in values.items():
        pieces += [f"{',' if pieces else '{'}{json.dumps(key, ensure_ascii=False)}:", *(value or [])]
    return [*pieces, "}"]


def _value_pieces(array: pa.Array) -> list[_Piece] | None:
    """What the texts of a column without nulls are made of; None if a value is null."""
    kind = array.type
    if array.null_count:
        return None
    if pa.types.is_string(kind) and (text := escaped(array)) is not None:
        return ['"', text, '"']
    if pa.types.is_struct(kind) and kind.num_fields:
        return _object_pieces(_fields(array))
    text = json_texts(array)
    return None if pc.any(pc.equal(text, text_scalar("null"))).as_py() else [text]


def _joined(pieces: Sequence[_Piece]) -> pa.Array:
    """The pieces one after another, of each row."""
    merged: list[_Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged[0] if len(merged) == 1 else _join(*merged)


def _join(*pieces: _Piece) -> pa.Array:
    """The pieces as one text a row, null where a piece is."""
    return pc.binary_join_element_wise(*(text_scalar(p) if isinstance(p, str) else p for p in pieces), text_scalar(""))


def _objects_with_gaps(columns: Mapping[str, pa.Array]) -> pa.Array:
    """Objects of which some lack some of the keys."""
    pieces = []
    for key in sorted(columns):
        text = json_texts(columns[key])
        text = pc.if_else(pc.equal(text, text_scalar("null")), no_text(), text)
        pieces.append(pc.fill_null(_join(f",{json.dumps(key, ensure_ascii=False)}:", text), text_scalar("")))
    return _join("{", pc.ascii_ltrim(_join(*pieces), ","), "}")


def json_texts(array: pa.Array) -> pa.Array:
    """The JSON text of every value; `null` of those that are null."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = _strings(array.cast(pa.string()))
    elif pa.types.is_boolean(kind):
        text = pc.if_else(array, text_scalar("true"), text_scalar("false"))
    elif pa.types.is_integer(kind):
        text = array.cast(pa.string())
    elif pa.types.is_list(kind):
        text = _lists(array)
    elif pa.types.is_struct(kind) and kind.num_fields:
        text = pc.if_else(array.is_valid(), json_objects(_fields(array)), no_text())
    else:  # numbers with a point, times, bytes and what else is rare
        text = pa.array([dumps(value) for value in array.to_pylist()], pa.string())
    return pc.fill_null(text, text_scalar("null"))


def _fields(array: pa.StructArray) -> dict[str, pa.Array]:
    return {field.name: column for field, column in zip(array.type, array.flatten(), strict=True)}


def _strings(array: pa.Array) -> pa.Array:
    text = escaped(array)
    if text is None:
        return pa.array([None if value is None else dumps(value) for value in array.to_pylist()], pa.string())
    return _join('"', text, '"')


def _lists(array: pa.Array) -> pa.Array:
    """Joins the texts of each list's values; `flatten` leaves out what stands under null lists."""
    values = json_texts(array.flatten())
    offsets = offsets_of(list_lengths(array))
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, values), text_scalar(","))
    text = _join("[", joined, "]")
    return pc.if_else(array.is_valid(), text, no_text())
