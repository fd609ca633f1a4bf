"""The bytes of a whole text column as one NumPy array: a scan of it costs a fraction of one by value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.arrow_values import no_text, number_column

_QUOTE, _BACKSLASH, _SPACE = 0x22, 0x5C, 0x20
_LETTERS = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", _QUOTE: '"', _BACKSLASH: "\\"}
_LETTER = np.zeros(256, np.uint8)
for _code, _letter in _LETTERS.items():
    _LETTER[_code] = ord(_letter)


def flat(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Bytes `uint8[total]` and offsets `int32[rows + 1]` into them, of a string or binary column."""
    _, offset_buffer, data_buffer = array.buffers()
    if offset_buffer is None or not len(array):
        return np.zeros(0, np.uint8), np.zeros(len(array) + 1, np.int32)
    offsets = np.frombuffer(offset_buffer, np.int32)[array.offset : array.offset + len(array) + 1]
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return data[offsets[0] : offsets[-1]], offsets - offsets[0]


def escaped(array: pa.Array) -> pa.Array | None:
    """Text as it stands between the quotes of JSON; None if it holds a character that needs a `\\u` escape."""
    data, offsets = flat(array)
    special = np.flatnonzero((data < _SPACE) | (data == _QUOTE) | (data == _BACKSLASH))
    if not len(special):
        return array
    letters = _LETTER[data[special]]
    if not letters.all():
        return None
    replaced = data.copy()
    replaced[special] = letters
    text = np.insert(replaced, special, _BACKSLASH)
    moved = (offsets + np.searchsorted(special, offsets)).astype(np.int32)
    result = pa.StringArray.from_buffers(len(array), pa.py_buffer(moved), pa.py_buffer(text))
    return pc.if_else(array.is_valid(), result, no_text()) if array.null_count else result


def holds_nul(array: pa.Array) -> bool:
    """Whether any value holds a NUL."""
    return bool((flat(array)[0] == 0).any())


def starts_visibly(array: pa.Array) -> bool:
    """Whether every value begins with an ASCII character that is seen: enough to know that none is blank."""
    data, offsets = flat(array)
    if not (np.diff(offsets) > 0).all():
        return False
    first = data[offsets[:-1]]
    return bool(((first > _SPACE) & (first < 0x7F)).all())


def list_lengths(array: pa.ListArray) -> np.ndarray:
    """Lengths `int32[rows]` of the lists of a column; a null has none."""
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(offsets)
    if array.null_count:
        valid = array.is_valid().cast(pa.uint8())
        lengths = lengths * np.frombuffer(valid.buffers()[1], np.uint8)[: len(array)].astype(np.int32)
    return lengths


def offsets_of(lengths: np.ndarray) -> pa.Array:
    """Arrow offsets `int32[rows + 1]` of lists with these lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return number_column(offsets)


def value_bytes(array: Any) -> np.ndarray:
    """Bytes of text and media in each value of a column, int64 `[rows]`; what is neither counts 8."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return np.diff(flat(array)[1]).astype(np.int64)
    if pa.types.is_struct(kind):
        return np.asarray(sum(value_bytes(child) for child in array.flatten()))
    if pa.types.is_list(kind):
        ends = np.cumsum(list_lengths(array))
        inner = np.concatenate([[0], np.cumsum(value_bytes(array.flatten()))])
        return np.diff(inner[np.concatenate([[0], ends]).astype(np.int64)])
    return np.full(len(array), 8, np.int64)
