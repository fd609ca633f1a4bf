"""Globs, folders, URLs and compressed files; and a conversion that was cut off."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import conversion, convert
from data_prep.errors import DataError
from data_prep.readers import RowBatch, read_batches
from data_prep.sources import Source, parse_sources, parse_spec
from data_prep.spool import Spool


def lines(count: int) -> bytes:
    return b"".join(json.dumps({"prompt": f"q{i}", "label": str(i)}).encode() + b"\n" for i in range(count))


def labels(spec: Any, tmp_path: Path) -> list[str]:
    found: list[str] = pq.read_table(convert.convert(spec, tmp_path / "out.parquet").path)["label"].to_pylist()
    return found


def test_folders_and_globs_stand_for_their_files_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    (folder / "deep").mkdir(parents=True)
    for name in ("b.jsonl", "a.jsonl", "deep/c.jsonl"):
        (folder / name).write_bytes(lines(1))
    (folder / "README.md").write_text("no data")
    names = [Path(source.path).name for source in parse_sources(str(folder))]
    assert names == ["a.jsonl", "b.jsonl"]
    assert len(parse_sources(f"{folder}/**/*")) == 3
    assert [source.name for source in parse_sources([f"{folder}/[b-z].*", f"{folder}/a*"])] == ["b.jsonl", "a.jsonl"]
    assert parse_spec(f"{folder}/a*[2:5]") == [Source(f"{folder}/a.jsonl", 2, 5)]
    with pytest.raises(DataError, match="names 2 files, and a slice is of one"):
        parse_spec(f"{folder}/*.jsonl[2:5]")
    with pytest.raises(DataError, match=r"/\*\.parquet' does not exist"):
        parse_sources(f"{folder}/*.parquet")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError) as caught:
        parse_sources([str(empty)])
    assert str(caught.value) == f"{empty} holds no data file; give a Parquet or JSON file, or a folder"


def test_a_list_may_be_written_as_text_within_a_list() -> None:
    """As it comes from a command line."""
    expected = [Source("a.parquet"), Source("b.jsonl", 0, 3), Source("c.parquet")]
    assert parse_spec(["['a.parquet', 'b.jsonl[:3]']", "c.parquet"]) == expected


def test_compressed_files_are_read_as_they_are(tmp_path: Path) -> None:
    content = lines(50)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content))
    (tmp_path / "a.jsonl.bz2").write_bytes(bz2.compress(content))
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(content))
    with pa.CompressedOutputStream(str(tmp_path / "a.jsonl.zst"), "zstd") as stream:
        stream.write(content)
    for suffix in ("gz", "bz2", "xz", "zst"):
        assert labels(tmp_path / f"a.jsonl.{suffix}", tmp_path) == [str(i) for i in range(50)]
    (tmp_path / "a.parquet.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"unknown format '\.parquet\.gz'"):
        parse_sources(tmp_path / "a.parquet.gz")


def test_urls_are_read_through_fsspec(tmp_path: Path) -> None:
    with fsspec.open("memory://sets/x/a.jsonl.gz", "wb") as stream:
        stream.write(gzip.compress(lines(3)))
    pq.write_table(pa.table({"prompt": ["p"], "label": ["last"]}), tmp_path / "b.parquet")
    with fsspec.open("memory://sets/x/b.parquet", "wb") as stream:
        stream.write((tmp_path / "b.parquet").read_bytes())
    assert labels("memory://sets/x/*", tmp_path) == ["0", "1", "2", "last"]
    assert labels("memory://sets/x/a.jsonl.gz[1:2]", tmp_path) == ["1"]
    with pytest.raises(DataError, match="does not exist"):
        parse_sources("memory://sets/x/none.parquet")
    with pytest.raises(DataError, match="cannot be opened"):
        parse_sources("nosuch://sets/a.parquet")


class Cut(Exception):
    """The process ends here."""


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_conversion_that_was_cut_off_goes_on_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(conversion, "SEGMENT_ROWS", 100)
    sources = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for number, source in enumerate(sources):
        rows = [{"prompt": f"q{i}", "label": "" if i == 7 else f"{number}-{i}"} for i in range(350)]
        if suffix == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), source, row_group_size=60)
        else:
            source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = [str(source) for source in sources]
    bad = tmp_path / "bad.jsonl"
    monkeypatch.setattr(conversion, "read_batches", lambda source: read_batches(source, batch_rows=40))
    whole = convert.convert(spec, tmp_path / "whole.parquet", quarantine=bad)
    expected, expected_bad = whole.path.read_bytes(), bad.read_bytes()
    assert (whole.rows, whole.bad) == (698, 2)

    read: list[int] = []

    def cut_after(count: int) -> None:
        def batches(source: Source) -> Iterator[RowBatch]:
            for batch in read_batches(source, batch_rows=40):
                if len(read) == count:
                    raise Cut
                read.append(len(batch))
                yield batch

        read.clear()
        monkeypatch.setattr(conversion, "read_batches", batches)

    cut_after(14)
    with pytest.raises(Cut):
        convert.convert(spec, tmp_path / "out.parquet", quarantine=bad)
    assert not (tmp_path / "out.parquet").exists()
    done = sum(read)
    cut_after(1000)
    again = convert.convert(spec, tmp_path / "out.parquet", quarantine=bad)
    assert 700 - done <= sum(read) <= 700 - done + 160
    assert (again.rows, again.bad) == (698, 2)
    assert (again.path.read_bytes(), bad.read_bytes()) == (expected, expected_bad)
    assert not list(tmp_path.glob(".*"))


def test_two_conversions_to_one_file_do_not_meet(tmp_path: Path) -> None:
    folder = tmp_path / ".out.parquet.parts"
    held = Spool(folder, "key")
    (tmp_path / "in.jsonl").write_bytes(lines(3))
    assert labels(tmp_path / "in.jsonl", tmp_path) == ["0", "1", "2"]
    assert held.folder.is_dir()
    held.remove()
    held.release()
    assert not list(tmp_path.glob(".*"))
    again = Spool(folder, "other")
    assert again.states() == []
    again.release()
