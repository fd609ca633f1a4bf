"""Splitting a dataset: rows with the same prompt stay together, so that no part leaks into another."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.checks.prompts import key, prompt_text
from data_prep.errors import DataError
from data_prep.parquet_sets import parquet_sources, tables
from data_prep.schema import PROMPT
from data_prep.sources import Spec
from data_prep.writer import replacing, write_parquet

REST = -1


def split(
    spec: Spec, parts: Mapping[str, float], directory: str | Path, *, seed: int = 0, input_key: str = PROMPT
) -> dict[str, int]:
    """Write one Parquet file per part to `directory`, `<name>.parquet`; returns their rows.

    Which part a prompt goes to depends on the prompts, the seed and the parts; rows keep their order. A part gets at
    most the rows asked for: a prompt whose rows do not fit goes to the next part with room, or is left out.

    Args:
        spec: the dataset.
        parts: for each part its share of the rows (at most 1), or their number (above 1).
        directory: where the parts go.
        seed: of the choice.
        input_key: column of the prompt.

    Raises:
        DataError: parts that ask for more than there is, no such column, or a damaged file.
    """
    sources = parquet_sources(spec)
    keys = array("Q")
    for table in tables(sources):
        if input_key not in table.column_names:
            raise DataError(f"{spec!r} has no column {input_key!r}; it has {table.column_names}")
        keys.extend(key(prompt_text(prompt)) for prompt in table.column(input_key).to_pylist())
    assigned = assign(np.array(keys, np.uint64), parts, seed)
    written = {}
    for number, name in enumerate(parts):
        with replacing(Path(directory) / f"{name}.parquet") as partial:
            chosen = _chosen(tables(sources), assigned == number)
            first = next(chosen)
            written[name] = write_parquet(_chained(first, chosen), first.schema, partial)
    return written


def assign(keys: np.ndarray, parts: Mapping[str, float], seed: int) -> np.ndarray:
    """Number of the part of each row, `REST` for none; `keys` are hashes of the prompts, uint64 `[rows]`.

    Raises:
        DataError: the parts ask for more rows than there are, or for none.
    """
    total = len(keys)
    wanted = [round(part * total) if part <= 1 else int(part) for part in parts.values()]
    if not parts or min(wanted) < 1 or sum(wanted) > total:
        raise DataError(f"{dict(parts)} asks for {wanted} of {total} rows; give shares up to 1, or numbers of rows")
    groups, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    order = np.argsort(_mixed(groups, seed), kind="stable")
    part_of = np.full(len(groups), REST)
    room = list(wanted)
    for group in order:
        part = next((part for part, free in enumerate(room) if counts[group] <= free), None)
        if part is not None:
            part_of[group] = part
            room[part] -= int(counts[group])
    assigned = part_of[inverse]
    empty = [name for number, name in enumerate(parts) if not (assigned == number).any()]
    if empty:
        raise DataError(f"no prompt's rows fit into part {empty[0]!r} of {wanted[list(parts).index(empty[0])]} rows")
    return assigned


def _mixed(values: np.ndarray, seed: int) -> np.ndarray:
    """SplitMix64's output function (Steele, Lea and Flood, 2014) of values and seed, uint64."""
    mixed = values ^ np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _chosen(stream: Iterator[pa.Table], mask: np.ndarray) -> Iterator[pa.Table]:
    start = 0
    for table in stream:
        yield table.filter(pa.array(mask[start : start + table.num_rows]))
        start += table.num_rows


def _chained(first: pa.Table, others: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from others
