"""The element-wise part of a decoding step, compiled by numba for float32 on a CPU.

What lives here: loops over plain arrays, each of which does what would otherwise be a chain of small tensor
operations with a buffer between every two. What does not: matrix products (`linear.py`), which oneDNN does better,
and who calls what (`compiled.py`). Compiled code is kept in numba's cache, so only the first engine of a machine waits.

A row's result depends on that row alone: sums run over its own columns in a fixed order. Loops over columns count
in unsigned integers, because numba wraps signed indices around, which keeps LLVM from vectorising.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import njit, prange

Kernel = Callable[..., None]

_OPTIONS: dict[str, Any] = {
    # What reordering needs, but not the promise that there is no NaN: broken weights must show.
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
    "error_model": "numpy",
    "nogil": True,
}
KEY_BLOCK = 16
"""Columns per block of the key cache: one vector register where they are widest."""
_ROWS_PER_TASK = 8
_WIDTH = np.uint64(KEY_BLOCK)
_LOG2_E = np.float32(1.4426950408889634)
_ONE, _ZERO, _HALF = np.float32(1.0), np.float32(0.0), np.float32(0.5)
_SMALLEST, _BIAS, _MANTISSA = np.float32(-126.0), np.int32(127), np.int32(23)
# 2**f interpolated at the Chebyshev points of [-1/2, 1/2], sixth power first: relative error 3e-9 before rounding.
_C6, _C5, _C4 = np.float32(1.54614447e-4), np.float32(1.34004282e-3), np.float32(9.61805668e-3)
_C3, _C2, _C1 = np.float32(5.55032723e-2), np.float32(2.40226509e-1), np.float32(6.93147207e-1)


@njit(inline="always", **_OPTIONS)
def _exp2(y):  # type: ignore[no-untyped-def]  # pragma: no cover
    """2**y for float32 y <= 127, without the call that would keep a loop from being vectorised."""
    y = max(y, _SMALLEST)
    whole = np.floor(y + _HALF)
    f = y - whole
    power = (((((_C6 * f + _C5) * f + _C4) * f + _C3) * f + _C2) * f + _C1) * f + _ONE
    return power * np.int32((np.int32(whole) + _BIAS) << _MANTISSA).view(np.float32)


@njit(forceinline=True, **_OPTIONS)
def _prepare(dim, normalise, head, weight, turn, epsilon, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """One head of `dim` elements, normalised, weighted and rotated, to `out`."""
    scale = _ONE
    if normalise:
        total = _ZERO
        for d in range(dim):
            total += head[d] * head[d]
        scale = _ONE / np.sqrt(total / np.float32(dim) + epsilon)
    for i in range(dim // 2):
        real, imaginary = head[2 * i] * weight[2 * i], head[2 * i + 1] * weight[2 * i + 1]
        cosine, sine = turn[2 * i] * scale, turn[2 * i + 1] * scale
        out[2 * i] = real * cosine - imaginary * sine
        out[2 * i + 1] = real * sine + imaginary * cosine


@njit(forceinline=True, **_OPTIONS)
def _score(dim, query, keys, scores, low, high):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Scores of one query for the columns of blocks `[low, high)`; the sum unrolls, the columns are one vector."""
    for block in range(np.uint64(low), np.uint64(high)):
        for c in range(_WIDTH):
            total = _ZERO
            for d in range(dim):
                total += query[d] * keys[block, d, c]
            scores[block * _WIDTH + c] = total


@njit(forceinline=True, **_OPTIONS)
def _softmax(scores, low, high):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Softmax of `scores[low:high]` in place."""
    first, end = np.uint64(low), np.uint64(high)
    top = scores[first]
    for c in range(first, end):
        top = max(top, scores[c])
    total = _ZERO
    for c in range(first, end):
        power = _exp2((scores[c] - top) * _LOG2_E)
        scores[c] = power
        total += power
    scale = _ONE / total
    for c in range(first, end):
        scores[c] *= scale


@njit(forceinline=True, **_OPTIONS)
def _add_weighted(dim, weights, values, out, low, high):  # type: ignore[no-untyped-def]  # pragma: no cover
    """out += the sum of `values` rows `[low, high)` times their weights, eight rows at a time."""
    whole = low + (high - low) // 8 * 8
    for c in range(np.uint64(low), np.uint64(whole), np.uint64(8)):
        for d in range(dim):
            total = _ZERO
            for i in range(np.uint64(8)):
                total += weights[c + i] * values[c + i, d]
            out[d] += total
    for c in range(np.uint64(whole), np.uint64(high)):
        for d in range(dim):
            out[d] += weights[c] * values[c, d]


@cache
def attention_kernel(dim: int, group: int, *, normalise: bool, parallel: bool) -> Kernel:
    """`attend(projected, weight, rope, epsilon, starts, leaders, shared, cursor, keys, values, out)`.

    Of every row's newest token: normalise queries and key (if the model does), rotate them, store key and value at
    column `cursor`, and write softmax(q K) V over the row's columns to `out`.

    All float32 or int64 and contiguous: projected `[rows, kv * (group + 2) * dim]` (per key/value head its queries, its
    key, its value); weight `[group + 1, dim]` multiplies queries and key; rope `[rows, dim]`, cosine and sine in
    turn; starts `[rows]`, each row's first column; row r's columns below `shared[r]` are read from row `leaders[r]`;
    keys `[rows, kv, columns / 16, dim, 16]`; values `[rows, kv, columns, dim]`; out `[rows, kv * group * dim]`.
    """

    @njit(
        "void(f4[:,::1],f4[:,::1],f4[:,::1],f4,i8[::1],i8[::1],i8[::1],i8,f4[:,:,:,:,::1],f4[:,:,:,::1],f4[:,::1])",
        cache=True,
        parallel=parallel,
        **_OPTIONS,
    )
    def attend(  # type: ignore[no-untyped-def]  # pragma: no cover
        projected, weight, rope, epsilon, starts, leaders, shared, cursor, keys, values, out
    ):
        rows, kv = projected.shape[0], keys.shape[1]
        heads = projected.reshape(rows, kv, group + 2, dim)
        results = out.reshape(rows, kv, group, dim)
        for task in prange((rows + _ROWS_PER_TASK - 1) // _ROWS_PER_TASK):
            turned = np.empty((group + 1, dim), np.float32)
            scores = np.empty(values.shape[2], np.float32)
            for r in range(task * _ROWS_PER_TASK, min(rows, (task + 1) * _ROWS_PER_TASK)):
                start, end, leader = starts[r], cursor + 1, leaders[r]
                # The leader's part ends with a whole block.
                split = max(start, min(shared[r], cursor) // KEY_BLOCK * KEY_BLOCK)
                for h in range(kv):
                    for g in range(group + 1):
                        _prepare(dim, normalise, heads[r, h, g], weight[g], rope[r], epsilon, turned[g])
                    for d in range(dim):
                        keys[r, h, cursor // KEY_BLOCK, d, cursor % KEY_BLOCK] = turned[group, d]
                        values[r, h, cursor, d] = heads[r, h, group + 1, d]
                    for g in range(group):
                        _score(dim, turned[g], keys[leader, h], scores, start // KEY_BLOCK, split // KEY_BLOCK)
                        _score(dim, turned[g], keys[r, h], scores, split // KEY_BLOCK, cursor // KEY_BLOCK + 1)
                        _softmax(scores, start, end)
                        result = results[r, h, g]
                        for d in range(dim):
                            result[d] = _ZERO
                        _add_weighted(dim, scores, values[leader, h], result, start, split)
                        _add_weighted(dim, scores, values[r, h], result, split, end)

    return attend


@njit("void(i8[::1],f4[:,::1],f4[:,::1],f4[:,::1],f4)", cache=True, **_OPTIONS)
def embed(tokens, table, x, normed, epsilon):  # type: ignore[no-untyped-def]  # pragma: no cover
    """x = table[tokens]; normed = x over its root mean square, per row of `[rows, hidden]`."""
    rows, size = x.shape
    for r in range(rows):
        source = table[tokens[r]]
        total = _ZERO
        for i in range(size):
            x[r, i] = source[i]
            total += source[i] * source[i]
        scale = _ONE / np.sqrt(total / np.float32(size) + epsilon)
        for i in range(size):
            normed[r, i] = x[r, i] * scale


@njit("void(f4[:,::1],f4[:,::1],f4[:,::1],f4)", cache=True, **_OPTIONS)
def add_and_normalise(x, delta, normed, epsilon):  # type: ignore[no-untyped-def]  # pragma: no cover
    """x += delta; normed = x over its root mean square, per row of `[rows, hidden]`."""
    rows, size = x.shape
    for r in range(rows):
        total = _ZERO
        for i in range(size):
            value = x[r, i] + delta[r, i]
            x[r, i] = value
            total += value * value
        scale = _ONE / np.sqrt(total / np.float32(size) + epsilon)
        for i in range(size):
            normed[r, i] = x[r, i] * scale


@njit("void(f4[:,::1],f4[:,::1])", cache=True, **_OPTIONS)
def gate(gate_up, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """out = silu(gate) * up; gate_up `[rows, 2 * size]`, out `[rows, size]`."""
    rows, size = out.shape
    for r in range(rows):
        source, target = gate_up[r], out[r]
        for i in range(size):
            value = source[i]
            power = _exp2(min(-value * _LOG2_E, np.float32(126.0)))
            target[i] = value / (_ONE + power) * source[size + i]
