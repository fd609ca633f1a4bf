"""verl's layout to ours: what goes where, byte by byte the same, and which rows are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.convert import convert
from data_prep.errors import DataError, DataValidationError
from data_prep.files import digest as file_digest
from data_prep.schema import COLUMNS, VERSION_KEY
from data_prep.writer import write_parquet


def row(index: int, **changes: Any) -> dict[str, Any]:
    base = {
        "data_source": "gsm8k",
        "prompt": [{"role": "user", "content": f"question {index}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(index)},
        "extra_info": {"split": "train", "index": index},
    }
    return base | changes


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_every_field_arrives(tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", [row(0), row(7, ability=None)])
    result = convert(source, tmp_path / "out.parquet")
    table = pq.read_table(result.path)
    assert tuple(table.column_names) == COLUMNS
    assert table.schema.metadata[VERSION_KEY] == b"2"
    digest = file_digest(str(source))
    assert result.source_digests == (digest,)
    second = table.to_pylist()[1]
    assert second["prompt"] == [{"role": "user", "content": "question 7"}]
    assert second["label"] == "7"
    assert (second["id"], second["source_digest"], second["source_row"]) == (f"{digest[:12]}-1", digest, 1)
    assert json.loads(second["metadata"]) == {
        "data_source": "gsm8k",
        "extra_info": {"split": "train", "index": 7},
        "reward_style": "rule",
    }


def test_same_input_gives_same_bytes_at_any_path(tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", [row(i) for i in range(50)])
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / "other.parquet"
    copy.write_bytes(source.read_bytes())
    first = convert(source, tmp_path / "a.parquet").path.read_bytes()
    assert convert(copy, tmp_path / "b.parquet").path.read_bytes() == first


def test_row_groups_depend_on_the_rows_and_not_on_how_they_came(tmp_path: Path) -> None:
    table = pa.table({"text": ["x" * 10] * 40})
    pieces = [table.slice(0, 7), table.slice(7, 20), table.slice(27)]
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    assert write_parquet([table], table.schema, files[0], group_rows=16) == 40
    write_parquet(pieces, table.schema, files[1], group_rows=16)
    metadata = pq.ParquetFile(files[1]).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [16, 16, 8]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_slice_keeps_the_numbers_of_the_source(tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", [row(i) for i in range(10)])
    path = convert(f"{source}[4:6]", tmp_path / "out.parquet").path
    assert pq.read_table(path)["source_row"].to_pylist() == [4, 5]
    assert pq.read_table(path)["label"].to_pylist() == ["4", "5"]


def test_a_question_as_text_becomes_the_users_message(tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", [row(0, prompt="how many?")])
    table = pq.read_table(convert(source, tmp_path / "out.parquet").path)
    assert table["prompt"].to_pylist() == [[{"role": "user", "content": "how many?"}]]


def test_all_bad_rows_are_counted_and_nothing_is_written(tmp_path: Path) -> None:
    rows = [row(i) for i in range(40)]
    for index in range(0, 40, 2):
        rows[index]["reward_model"]["ground_truth"] = ""
    rows[3]["prompt"] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    destination = tmp_path / "out" / "d.parquet"
    with pytest.raises(DataValidationError) as caught:
        convert(write(tmp_path / "in.parquet", rows), destination)
    (finding,) = caught.value.findings
    assert finding.count == 21
    assert finding.rows[0] == (0, "the label is an empty string")
    assert finding.rows[2] == (3, "the last message is from 'assistant', expected 'user'")
    assert "in 21 rows" in str(caught.value)
    assert "16 more" in str(caught.value)
    assert list(destination.parent.iterdir()) == []


def test_label_that_is_a_number_is_refused_with_its_value(tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", [row(0, reward_model={"style": "rule", "ground_truth": 42})])
    with pytest.raises(DataValidationError, match="row 0: the label 42 is int, not a string"):
        convert(source, tmp_path / "out.parquet")


def test_missing_column_names_it_and_those_there_are(tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", [{"prompt": "q", "answer": "a"}])
    with pytest.raises(DataError, match=r"no column 'reward_model'.*it has \['prompt', 'answer'\]"):
        convert(source, tmp_path / "out.parquet", format="verl")


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_empty_dataset_is_refused(tmp_path: Path, suffix: str) -> None:
    source = tmp_path / f"in.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist([row(0)]).slice(0, 0), source)
    else:
        source.write_text("")
    with pytest.raises(DataError, match="holds no rows"):
        convert(source, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_unknown_format_lists_the_known_ones(tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", [row(0)])
    with pytest.raises(DataError, match="unknown dataset format 'verll'; known formats: auto, dapo, gpqa"):
        convert(source, tmp_path / "out.parquet", format="verll")


def test_a_failed_conversion_leaves_the_old_file(tmp_path: Path) -> None:
    destination = convert(write(tmp_path / "good.parquet", [row(0)]), tmp_path / "out.parquet").path
    before = destination.read_bytes()
    with pytest.raises(DataValidationError):
        convert(write(tmp_path / "bad.parquet", [row(0, prompt=[])]), destination)
    assert destination.read_bytes() == before
