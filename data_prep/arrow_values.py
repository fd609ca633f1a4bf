"""Arrow values from Python's and NumPy's without `pa.array` and `pa.scalar`, which import pandas.

That import takes half a second and 45 MiB, which is much of what a conversion of columns needs otherwise.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa


def number_column(values: np.ndarray) -> pa.Array:
    """A NumPy array of numbers as an Arrow array, without a copy."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def text_column(*values: str) -> pa.StringArray:
    """A few texts as an Arrow array."""
    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


@cache
def text_scalar(value: str) -> pa.StringScalar:
    """A text as an argument of Arrow's functions."""
    return text_column(value)[0]


@cache
def no_text() -> pa.StringScalar:
    """A null among texts."""
    return pa.nulls(1, pa.string())[0]
