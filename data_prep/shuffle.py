"""Shuffling more rows than fit into memory: first into buckets on disk at random, then each bucket by itself.

Every order is equally likely, as each row draws its bucket independently and buckets are permuted (Rao, 1961).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

BUCKET_BYTES = 64 << 20


def shuffled(tables: Iterator[pa.Table], schema: pa.Schema, size: int, seed: int, folder: Path) -> Iterator[pa.Table]:
    """All rows in an order that depends on `seed`, the rows and their order.

    Args:
        tables: the rows.
        schema: their schema.
        size: about how many bytes they hold; decides the number of buckets.
        seed: of the order.
        folder: where the buckets lie meanwhile.
    """
    count = max(1, -(-size // BUCKET_BYTES))
    draw, order = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    with tempfile.TemporaryDirectory(dir=folder, prefix=".shuffle-") as directory:
        paths = [str(Path(directory) / str(number)) for number in range(count)]
        with ExitStack() as stack:
            files = [stack.enter_context(pa.OSFile(path, "wb")) for path in paths]
            writers = [stack.enter_context(pa.ipc.new_stream(file, schema)) for file in files]
            for table in tables:
                bucket = (draw.random(table.num_rows) * count).astype(np.int64)
                for number in np.unique(bucket):
                    writers[number].write_table(table.filter(pa.array(bucket == number)))
        for path in paths:
            with pa.OSFile(path) as file, pa.ipc.open_stream(file) as reader:
                rows = reader.read_all()
            if rows.num_rows:
                yield rows.take(pa.array(order.permutation(rows.num_rows)))
