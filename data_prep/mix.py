"""Mixing datasets by weights, sampling from each, and shuffling the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.errors import DataError
from data_prep.files import size
from data_prep.parquet_sets import parquet_sources, tables, total_rows
from data_prep.schema import ID
from data_prep.shuffle import shuffled
from data_prep.sources import Source, Spec
from data_prep.writer import replacing, write_parquet

_TEXT_FACTOR = 4  # text in memory over text in a Parquet file, about


@dataclass(frozen=True, slots=True)
class MixResult:
    """The file written, and the rows taken from each dataset."""

    path: Path
    taken: tuple[int, ...]


def mix(
    inputs: Sequence[tuple[Spec, float]],
    destination: str | Path,
    *,
    rows: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
    repeat: bool = False,
) -> MixResult:
    """Write one Parquet file of rows from several datasets.

    Args:
        inputs: each dataset and its weight; the shares of the rows are proportional to the weights.
        destination: the file to write.
        rows: how many; by default as many as there are without using any row twice.
        seed: of the choice of rows and of their order.
        shuffle: mix the order; else each dataset's rows stand together in their own order.
        repeat: use rows again where a dataset has too few; their ids get `+1`, `+2`, ...

    Raises:
        DataError: weights that are none, too few rows, or files of different schemas.
    """
    weights = np.array([weight for _, weight in inputs], float)
    if not len(weights) or not (np.isfinite(weights) & (weights > 0)).all():
        raise DataError(f"weights must be positive numbers, got {weights.tolist()}")
    sets = [parquet_sources(spec) for spec, _ in inputs]
    present = [total_rows(sources) for sources in sets]
    taken = apportion(weights, present, rows)
    for sources, have, take in zip(sets, present, taken, strict=True):
        if not have or (take > have and not repeat):
            names = ", ".join(map(str, sources))
            raise DataError(f"{names} has {have} rows, {take} are asked for; lower --rows or its weight, or --repeat")
    schema = next(tables(sets[0])).schema
    destination = Path(destination)
    with replacing(destination) as partial:
        stream = _stream(sets, present, taken, schema, seed)
        if shuffle:
            stored = sum(
                _bytes(sources) * take // have for sources, have, take in zip(sets, present, taken, strict=True)
            )
            stream = shuffled(stream, schema, stored * _TEXT_FACTOR, seed, partial.parent)
        write_parquet(stream, schema, partial)
    return MixResult(destination, tuple(taken))


def apportion(weights: np.ndarray, present: Sequence[int], rows: int | None) -> list[int]:
    """Rows of each dataset: proportional to the weights, by largest remainders (Hamilton's method)."""
    shares = weights / weights.sum()
    total = rows if rows is not None else int(min(have / share for have, share in zip(present, shares, strict=True)))
    exact = shares * total
    taken = np.floor(exact + 1e-9).astype(int)
    for index in np.argsort(taken - exact, kind="stable")[: total - int(taken.sum())]:
        taken[index] += 1
    return [int(count) for count in taken]


def _bytes(sources: Sequence[Source]) -> int:
    return sum(size(source.path) for source in sources)


def _stream(
    sets: Sequence[list[Source]], present: Sequence[int], taken: Sequence[int], schema: pa.Schema, seed: int
) -> Iterator[pa.Table]:
    for number, (sources, have, take) in enumerate(zip(sets, present, taken, strict=True)):
        rounds, some = divmod(take, have)
        for again in range(rounds):
            yield from (_renamed(table, again) for table in tables(sources, schema))
        mask = np.zeros(have, bool)
        mask[np.random.default_rng([seed, 2, number]).permutation(have)[:some]] = True
        start = 0
        for table in tables(sources, schema):
            yield _renamed(table.filter(pa.array(mask[start : start + table.num_rows])), rounds)
            start += table.num_rows


def _renamed(table: pa.Table, again: int) -> pa.Table:
    if not again or ID not in table.column_names:
        return table
    ids = pa.compute.binary_join_element_wise(table.column(ID), f"+{again}", "")
    index = table.column_names.index(ID)
    return table.set_column(index, table.schema.field(ID), ids)
