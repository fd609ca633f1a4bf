"""Which rows a specification names, and what is said about files that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.errors import DataError
from data_prep.json_rows import BadRow
from data_prep.readers import count_rows, read_batches
from data_prep.sources import parse_sources


def write(path: Path, rows: int, row_group: int = 7) -> Path:
    pq.write_table(pa.table({"n": list(range(rows))}), path, row_group_size=row_group)
    return path


def numbers(spec: str | list[str], batch_rows: int = 5) -> list[int]:
    return [
        row["n"]
        for source in parse_sources(spec)
        for batch in read_batches(source, batch_rows=batch_rows)
        for _, row in batch.rows()
    ]


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("", range(23)),
        ("[3:9]", range(3, 9)),
        ("[7:14]", range(7, 14)),
        ("[20:]", range(20, 23)),
        ("[:4]", range(4)),
        ("[9:9]", []),
        ("[21:99]", range(21, 23)),
        ("[50:60]", []),
    ],
)
@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_slices_give_exactly_their_rows(tmp_path: Path, piece: str, expected: range, suffix: str) -> None:
    path = tmp_path / f"d.{suffix}"
    if suffix == "parquet":
        write(path, 23)
    else:
        path.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(23)))
    assert numbers(f"{path}{piece}") == list(expected)


def test_batches_know_their_first_row_number(tmp_path: Path) -> None:
    path = write(tmp_path / "d.parquet", 23, row_group=23)
    (source,) = parse_sources(f"{path}[8:21]")
    batches = list(read_batches(source, batch_rows=5))
    assert [(batch.start, [row["n"] for _, row in batch.rows()]) for batch in batches] == [
        (8, [8, 9]),
        (10, [10, 11, 12, 13, 14]),
        (15, [15, 16, 17, 18, 19]),
        (20, [20]),
    ]
    assert count_rows(source) == 13


def test_a_list_is_read_in_its_order(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.parquet", 3), write(tmp_path / "b.parquet", 5)
    assert numbers([f"{b}[3:]", str(a)]) == [3, 4, 0, 1, 2]


def test_missing_file_and_unknown_ending_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.parquet' does not exist"):
        parse_sources(str(tmp_path / "nowhere.parquet"))
    path = tmp_path / "d.csv"
    path.write_text("a,b\n")
    with pytest.raises(DataError, match=r"unknown format '\.csv'; known: .*\.parquet"):
        parse_sources(str(path))


def test_truncated_parquet_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "d.parquet", 1000)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"d\.parquet' is not a readable Parquet file"):
        numbers(str(path))


def test_damaged_page_is_an_error_and_not_wrong_rows(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    table = pa.table({"n": list(range(5000))})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 40] = b"\xff" * 40
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"d\.parquet' is damaged after row"):
        numbers(str(path))


def test_a_line_that_is_no_row_is_handed_on_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"n": 1}\n{"n": \n\n[2]\n{"n": 3}\n')
    (source,) = parse_sources(str(path))
    (batch,) = read_batches(source)
    rows = list(batch.rows())
    assert [number for number, _ in rows] == [0, 1, 2, 3]
    assert (rows[0][1], rows[3][1]) == ({"n": 1}, {"n": 3})
    reasons = [row.reason for _, row in rows if isinstance(row, BadRow)]
    assert reasons[0].startswith("line 2: not JSON")
    assert reasons[1] == "line 4: expected a JSON object, found list"
