"""Files made, or damaged, to break a reader: a clear error or a row set aside, never a crash, never a foreign file."""

from __future__ import annotations

import gzip
import io
import json
import resource
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data_prep.convert import ConversionResult, convert
from data_prep.errors import DataError, DataValidationError


def row(index: int, **changes: Any) -> dict[str, Any]:
    return {"prompt": f"question {index}", "label": str(index)} | changes


def jsonl(path: Path, *rows: bytes | dict[str, Any]) -> Path:
    path.write_bytes(b"".join(r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in rows))
    return path


def converted(source: Path, **options: Any) -> tuple[ConversionResult, list[dict[str, Any]]]:
    """The result, and what was set aside."""
    quarantine = source.parent / "bad.jsonl"
    result = convert(source, source.parent / "out.parquet", quarantine=quarantine, **options)
    lines = quarantine.read_text().splitlines() if quarantine.exists() else []
    return result, [json.loads(line) for line in lines]


def image(size: tuple[int, int] = (8, 8)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (200, 10, 10)).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"prompt": "q", "label": \n', "not JSON"),
        (b'{"prompt": "q\x00", "label": "a"}\n', "not JSON: Invalid control character"),
        (b'{"prompt": "q\\u0000", "label": "a"}\n', "holds a NUL character at position 1"),
        (b'{"prompt": "\xff\xfe", "label": "a"}\n', "not UTF-8 text: invalid start byte at byte 12"),
        (b'{"prompt": "\\ud800", "label": "a"}\n', "half a surrogate pair"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
        (b'{"prompt": "q", "label": "a", "extra": ' + b"[" * 5000 + b"]" * 5000 + b"}\n", "nested too deeply"),
        (b'{"prompt": "q", "label": ' + b"9" * 5000 + b"}\n", "not JSON"),
        (b'"text"\n', "expected a JSON object, found str"),
        (b'{"prompt": 7, "label": "a"}\n', "the prompt is int"),
        (b'{"prompt": {"role": "user"}, "label": "a"}\n', "the prompt is dict"),
        (b'{"prompt": ["q"], "label": "a"}\n', "message 0 is str"),
        (b'{"prompt": "q", "label": 1e999}\n', "the label inf is float"),
        (b'{"prompt": "q"}\n', "column 'label' is missing"),
        (b'{"prompt": "q", "label": "a", "metadata": "{"}\n', "metadata is text, but no JSON"),
        (b'{"prompt": "q", "label": "a", "metadata": [1]}\n', "metadata is list"),
        (b'{"prompt": "q", "label": "a", "images": ["x"]}\n', "which the first 256 rows of the data have not"),
    ],
)
def test_a_bad_line_is_set_aside_and_the_others_arrive(tmp_path: Path, bad: bytes, reason: str) -> None:
    good = [row(i) for i in range(300)]
    source = jsonl(tmp_path / "d.jsonl", *good, bad, row(301))
    result, aside = converted(source)
    assert (result.rows, result.bad) == (301, 1)
    assert aside[0]["row"] == 300
    assert reason in aside[0]["reason"]
    assert pq.read_table(result.path)["source_row"].to_pylist()[-1] == 301
    with pytest.raises(DataValidationError, match="row 300: "):
        convert(source, tmp_path / "strict.parquet")
    assert not (tmp_path / "strict.parquet").exists()


def test_a_line_without_end_is_set_aside_in_bounded_memory(tmp_path: Path) -> None:
    source = tmp_path / "d.jsonl.gz"
    with gzip.open(source, "wb", compresslevel=1) as stream:
        stream.write(json.dumps(row(0)).encode() + b'\n{"prompt": "')
        for _ in range(200):
            stream.write(b"a" * (1 << 20))
        stream.write(b'"}\n' + json.dumps(row(2)).encode())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result, aside = converted(source)
    assert result.rows == 2
    assert (aside[0]["row"], aside[0]["reason"]) == (1, "line 2: longer than 64 MiB")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 190 * 1024


def test_a_huge_cell_of_parquet_is_set_aside(tmp_path: Path) -> None:
    source = tmp_path / "d.parquet"
    table = pa.table({"prompt": ["q0", "x" * (40 << 20), "q2"], "label": ["a", "b", "c"]})
    pq.write_table(table, source, compression="zstd", use_dictionary=False)
    result, aside = converted(source)
    assert (result.rows, aside[0]["row"]) == (2, 1)
    assert "41943040 characters" in aside[0]["reason"]
    assert len(json.dumps(aside)) < 10_000


def test_a_huge_value_beside_prompt_and_label_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever column it is in, before it is copied; the rows around it arrive."""
    monkeypatch.setattr("data_prep.oversized.CELL_BYTES", 1 << 20)
    rows = [row(i, extra={"note": ["short", "x" * ((2 << 20) if i in (0, 3) else 3)]}) for i in range(6)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    result, bad = converted(tmp_path / "a.parquet", format="relax")
    assert (result.rows, [line["row"] for line in bad]) == (4, [0, 3])
    assert bad[0]["reason"] == "column 'extra' has 2097157 bytes, more than 1 MiB"
    assert pq.read_table(result.path)["source_row"].to_pylist() == [1, 2, 4, 5]


@pytest.mark.parametrize(("levels", "kept"), [(200, True), (201, False), (900, False)])
def test_the_depth_that_is_written_is_the_same_on_every_interpreter(tmp_path: Path, levels: int, kept: bool) -> None:
    nested = json.loads("[" * levels + "]" * levels)
    result, bad = converted(jsonl(tmp_path / "a.jsonl", row(0), row(1, extra=nested), row(2)), format="relax")
    assert (result.rows, [line["row"] for line in bad]) == ((3, []) if kept else (2, [1]))
    if not kept:
        assert bad[0]["reason"] == "a value is nested deeper than 200 levels, too deep to be written as JSON"


def test_text_of_parquet_that_is_not_utf8_is_found_by_row(tmp_path: Path) -> None:
    labels = pa.array([b"a", b"\xc3\x28", b"c"], pa.binary()).view(pa.string())
    source = tmp_path / "d.parquet"
    pq.write_table(pa.table({"prompt": ["q0", "q1", "q2"], "label": labels}), source)
    result, aside = converted(source)
    assert (result.rows, aside[0]["row"]) == (2, 1)
    assert "not UTF-8" in aside[0]["reason"]


@pytest.mark.parametrize("keep", [0, 3, 100, -30, -1])
def test_parquet_cut_off_anywhere_is_an_error_that_names_it(tmp_path: Path, keep: int) -> None:
    source = tmp_path / "cut.parquet"
    pq.write_table(pa.Table.from_pylist([row(i) for i in range(500)]), source)
    source.write_bytes(source.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"cut\.parquet' is not a readable Parquet file"):
        convert(source, tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["cut.parquet"]


@pytest.mark.parametrize("position", [20, 400, 2000])
def test_flipped_bytes_of_parquet_never_become_rows(tmp_path: Path, position: int) -> None:
    source = tmp_path / "d.parquet"
    table = pa.Table.from_pylist([row(i) for i in range(3000)])
    pq.write_table(table, source, use_dictionary=False, write_page_checksum=True)
    data = bytearray(source.read_bytes())
    data[position : position + 16] = bytes(byte ^ 0xFF for byte in data[position : position + 16])
    source.write_bytes(data)
    with pytest.raises(DataError, match=r"d\.parquet"):
        convert(source, tmp_path / "out.parquet", quarantine=tmp_path / "bad.jsonl")
    assert not (tmp_path / "out.parquet").exists()


def test_wide_encodings_and_cut_archives_are_named(tmp_path: Path) -> None:
    wide = tmp_path / "wide.jsonl"
    wide.write_text(json.dumps(row(0)), encoding="utf-16")
    with pytest.raises(DataError, match=r"wide\.jsonl' is UTF-16 or UTF-32 text; save it as UTF-8"):
        convert(wide, tmp_path / "out.parquet")
    marked = tmp_path / "marked.jsonl"
    marked.write_text(json.dumps(row(0)), encoding="utf-8-sig")
    assert convert(marked, tmp_path / "out.parquet").rows == 1
    for suffix in (".gz", ".bz2", ".xz", ".zst"):
        cut = tmp_path / f"cut.jsonl{suffix}"
        cut.write_bytes(b"this is no archive")
        with pytest.raises(DataError, match=rf"cut\.jsonl{suffix}' is damaged"):
            convert(cut, tmp_path / "out.parquet")


def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_prep.files.EXPANSION_FREE", 1 << 20)
    source = tmp_path / "bomb.jsonl.zst"
    with pa.CompressedOutputStream(str(source), "zstd") as stream:
        for _ in range(30):
            stream.write(b"a" * (1 << 20) + b"\n")
    assert source.stat().st_size < 20_000
    with pytest.raises(DataError, match="expands to more than 1000 times its size"):
        convert(source, tmp_path / "out.parquet")


def test_media_paths_stay_inside_the_dataset(tmp_path: Path) -> None:
    (tmp_path / "secret.jpg").write_bytes(image())
    folder = tmp_path / "set"
    (folder / "media").mkdir(parents=True)
    (folder / "media" / "a.jpg").write_bytes(image())
    (folder / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    paths = ["media/a.jpg", "../secret.jpg", str(tmp_path / "secret.jpg"), "link.jpg", "media/../../secret.jpg"]
    paths += [f"file://{tmp_path}/secret.jpg", "media/none.jpg", "media/\0.jpg", "media"]
    source = jsonl(folder / "d.jsonl", *(row(i, prompt="<image> what?", images=[p]) for i, p in enumerate(paths)))
    result, aside = converted(source)
    assert result.rows == 1
    (kept,) = pq.read_table(result.path)["images"].to_pylist()
    assert kept == [{"bytes": image(), "path": "media/a.jpg"}]
    assert [entry["row"] for entry in aside] == list(range(1, 9))
    assert all("leads out of the dataset's folder" in entry["reason"] for entry in aside[:5])
    assert "does not exist" in aside[5]["reason"]
    assert "NUL" in aside[6]["reason"]


def bomb_png(side: int) -> bytes:
    """A PNG whose header promises `side` x `side` pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not an image", "does not decode as an image"),
        (b"", "does not decode as an image"),
        (image((64, 64))[:400], "does not decode as an image"),
        (bomb_png(60_000), "DecompressionBombError"),
        (bomb_png(64), "does not decode as an image"),
    ],
)
def test_images_that_do_not_decode_are_set_aside(tmp_path: Path, content: bytes, reason: str) -> None:
    rows = [row(0, prompt="<image>?", images=[{"bytes": image(), "path": "/home/someone/a.jpg"}])]
    rows.append(row(1, prompt="<image>?", images=[{"bytes": content, "path": None}]))
    source = tmp_path / "d.parquet"
    pq.write_table(pa.Table.from_pylist(rows), source)
    result, aside = converted(source)
    assert reason in aside[0]["reason"]
    assert pq.read_table(result.path)["images"].to_pylist() == [[{"bytes": image(), "path": "a.jpg"}]]


def test_placeholders_are_counted(tmp_path: Path) -> None:
    texts = ["<image>?", "none", "<image><image>"]
    rows = [row(i, prompt=text, images=[{"bytes": image(), "path": None}]) for i, text in enumerate(texts)]
    source = tmp_path / "d.parquet"
    pq.write_table(pa.Table.from_pylist(rows), source)
    result, aside = converted(source)
    assert result.rows == 1
    assert aside[0]["reason"] == "the prompt has 0 <image> for 1 images"
    assert aside[1]["reason"] == "the prompt has 2 <image> for 1 images"


def test_too_many_bad_rows_are_an_error_all_the_same(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "d.jsonl", *(row(i, label="" if i % 4 == 0 else "a") for i in range(40)))
    assert converted(source, max_bad_share=0.25)[0].bad == 10
    with pytest.raises(DataValidationError, match="in 10 rows"):
        converted(source, max_bad_share=0.24)
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 10
