"""`relax data validate`, with Great Expectations and a real tokenizer, on good and bad files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.convert import convert
from data_prep.errors import DataError, DataValidationError
from data_prep.validate import validate
from examples.tiny_math.make_data import make_data
from examples.tiny_math.make_model import make_model
from relax_engine.cli.data import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "m")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def row(index: int, **changes: Any) -> dict[str, Any]:
    base = {"id": f"r{index}", "prompt": [{"role": "user", "content": f"question {index}"}], "label": f"answer {index}"}
    return base | changes


def test_the_demos_data_pass_and_are_described(tmp_path: Path, model: Path) -> None:
    paths = make_data(tmp_path, train_rows=300, heldout_rows=50, sft_rows=50)
    converted = convert(paths["train"], tmp_path / "converted.parquet").path
    report = validate(converted, tokenizer=model, docs=tmp_path / "docs")
    assert report.ok
    assert report.rows == 300
    assert report.stats["sources"] == {"reasoning_gym/spell_backward": 300}
    # <|im_start|>, the role line, "reverse " and 3 to 5 letters, <|im_end|>, newline, <|im_start|>, the role line
    assert (report.stats["prompt_tokens"]["min"], report.stats["prompt_tokens"]["max"]) == (17, 19)
    assert (report.stats["label_characters"]["min"], report.stats["label_characters"]["max"]) == (3, 5)
    assert {rule.rule for rule in report.rules} >= {"label", "prompt", "prompt length", "id unique"}
    assert (tmp_path / "docs" / "index.html").is_file()
    assert list((tmp_path / "docs" / "validations").rglob("*.html"))


def test_every_broken_rule_is_reported_with_its_rows(tmp_path: Path, model: Path) -> None:
    rows = [row(index) for index in range(8)]
    rows[1]["label"] = ""
    rows[2]["label"] = None
    rows[4]["prompt"] = [{"role": "user", "content": "x" * 300}]
    rows[5]["prompt"] = [{"role": "assistant", "content": "hello"}]
    rows[7]["id"] = "r0"
    report = validate(write(tmp_path / "d.parquet", rows), tokenizer=model, docs=tmp_path / "docs")
    found = {finding.rule: finding for finding in report.findings}
    assert found["label"].rows == ((1, "the label is an empty string"), (2, "the label is missing"))
    assert found["prompt"].rows == ((5, "the last message is from 'assistant', expected 'user'"),)
    assert [number for number, _ in found["id unique"].rows] == [0, 7]
    # 300 bytes and six tokens of template; row 5 is no prompt and has no length.
    assert found["prompt length"].rows == ((4, "306"),)
    with pytest.raises(DataValidationError, match=r"(?s)breaks 4 rules.*row 4: 306"):
        report.raise_if_failed()


def test_failing_rows_are_bounded_and_all_counted(tmp_path: Path) -> None:
    report = validate(write(tmp_path / "d.parquet", [row(i, label="") for i in range(500)]), max_reported_rows=10)
    (finding,) = report.findings
    assert (finding.count, len(finding.rows)) == (500, 10)
    assert len(str(finding)) < 500
    assert "in 500 rows" in str(finding)
    assert "495 more" in str(finding)


def test_labels_that_are_numbers_are_named_as_such(tmp_path: Path) -> None:
    report = validate(write(tmp_path / "d.parquet", [row(i, label=i) for i in range(3)]))
    (finding,) = report.findings
    assert finding.rule == "label"
    assert finding.rows[2] == (2, "the label 2 is int, not a string")


def test_missing_column_and_empty_file_have_their_own_messages(tmp_path: Path) -> None:
    without = write(tmp_path / "a.parquet", [{"prompt": "q", "answer": "a"}])
    (finding,) = validate(without).findings
    assert "has no column 'label'; it has ['prompt', 'answer']" in finding.reason
    pq.write_table(pa.Table.from_pylist([row(0)]).slice(0, 0), tmp_path / "b.parquet")
    (finding,) = validate(tmp_path / "b.parquet").findings
    assert "has no rows" in finding.reason


def test_a_directory_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "d.parquet", [row(0)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no tokenizer"):
        validate(path, tokenizer=tmp_path / "empty")
    with pytest.raises(DataError, match="needs a tokenizer"):
        validate(path, max_prompt_tokens=5)


def test_the_command_line(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = make_data(tmp_path, train_rows=20, heldout_rows=5, sft_rows=5)
    destination = tmp_path / "out.parquet"
    assert main(["convert", "--format", "verl", str(paths["train"]), str(destination)]) == 0
    assert main(["validate", str(destination), "--tokenizer", str(model)]) == 0
    assert "20 rows, prompts of 17 to 19 tokens" in capsys.readouterr().out
    assert main(["validate", str(destination), "--tokenizer", str(model), "--max-prompt-len", "16"]) == 1
    assert "in 20 rows (row 0:" in capsys.readouterr().err
    assert main(["convert", "--format", "nope", str(paths["train"]), str(destination)]) == 1
    assert "unknown dataset format 'nope'" in capsys.readouterr().err
