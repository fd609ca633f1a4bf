"""Rows by number: what they hold, what their digest depends on, and what they cost in memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from relax_engine.rollout.prompt_rows import PromptRows


def test_every_row_is_the_one_of_its_number(tmp_path: Path) -> None:
    """Over files of other types and columns, in any order."""
    first = [{"input": f"q{i}", "label": str(i), "image": bytes([i % 256]) * 3000} for i in range(1000)]
    second = [{"input": [{"role": "user", "content": f"m{i}"}], "metadata": {"n": i}} for i in range(300)]
    pq.write_table(pa.Table.from_pylist(first), tmp_path / "a.parquet", row_group_size=70)
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in second))
    rows = PromptRows([f"{tmp_path}/a.parquet", f"{tmp_path}/b.jsonl", f"{tmp_path}/a.parquet[10:20]"], ["input"])
    expected = [*first, *second, *first[10:20]]
    assert len(rows) == len(expected)
    numbers = list(range(len(rows)))
    random.Random(0).shuffle(numbers)
    assert all(rows[number] == expected[number] for number in numbers)


def test_the_digest_is_of_contents_and_not_of_how_they_are_stored(tmp_path: Path) -> None:
    table = pa.table({"input": [f"q{i}" for i in range(2000)], "other": list(range(2000))})
    path = str(tmp_path / "a.parquet")

    def digest(table: pa.Table, spec: str = path, **options: object) -> str:
        pq.write_table(table, path, **options)
        return PromptRows([spec], ["input"]).digest

    original = digest(table)
    assert digest(table, row_group_size=33, compression="zstd") == original
    assert digest(table.set_column(1, "other", pa.array([0] * 2000))) == original
    swapped = table.take([1, 0, *range(2, 2000)])
    assert digest(swapped) != original
    assert digest(pa.concat_tables([swapped, table]), f"{path}[2000:]") == original


_MEASURE = """
import resource, sys
from relax_engine.rollout.prompt_rows import PromptRows
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = PromptRows([sys.argv[1]], ["input"])
for number in range(0, len(rows), 97):
    assert len(rows[len(rows) - 1 - number]["input"]) == 20_000
print(len(rows), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_a_file_larger_than_the_memory_it_may_take(tmp_path: Path) -> None:
    """240 MB of text, which lz4 does not compress: rows take less than 180 MiB, however many there are."""
    path = tmp_path / "large.parquet"
    letters = np.frombuffer(bytes(range(48, 112)), np.uint8)
    rng = np.random.default_rng(0)
    with pq.ParquetWriter(path, pa.schema({"input": pa.string()}), use_dictionary=False) as writer:
        for _ in range(24):
            data = letters[rng.integers(0, 64, 10_000_000, np.uint8)]
            offsets = np.arange(0, 10_000_001, 20_000, dtype=np.int32)
            writer.write(
                pa.table([pa.StringArray.from_buffers(500, pa.py_buffer(offsets), pa.py_buffer(data))], ["input"])
            )
    answer = subprocess.run([sys.executable, "-c", _MEASURE, str(path)], capture_output=True, text=True, check=True)
    rows, grown = answer.stdout.split()
    assert int(rows) == 12_000
    assert float(grown) < 180, grown
