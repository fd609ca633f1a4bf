"""The checks beside those of prompts and labels: duplicates, leaks, labels, task types, and setting rows aside."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data_prep.checks.near import nearest, signature
from data_prep.checks.prompts import key, script
from data_prep.checks.tasks import choice_defect, media_defect, tools_defect
from data_prep.errors import DataError
from data_prep.validate import Checks, validate
from relax_engine.cli.data import main


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def question(number: int) -> str:
    words = np.random.default_rng(number).integers(0, 5000, 40)
    return "How many of these are prime: " + ", ".join(str(word) for word in words) + "?"


def test_similarity_is_an_estimate_of_the_jaccard_index() -> None:
    def pieces(text: str) -> set[str]:
        return {text[i : i + 5] for i in range(len(text) - 4)}

    first = question(1).lower()
    for changed in (20, 60, 120):
        second = first[:-changed] + question(2).lower()[-changed:]
        a, b = pieces(first), pieces(second)
        exact = len(a & b) / len(a | b)
        estimate = (signature(first) == signature(second)).mean()
        assert abs(estimate - exact) < 3 * 0.0625
    many = np.stack([signature(question(i)) for i in range(200)])
    copies = np.stack([signature(question(i) + " Explain.") for i in range(200)])
    assert nearest(many, None, 0.8) == []
    pairs = nearest(copies, many, 0.8)
    assert [(row, other) for row, other, _ in pairs] == [(i, i) for i in range(200)]


def test_case_spaces_and_media_decide_what_is_the_same() -> None:
    assert key("What  is\n2+2?") == key("what is 2+2?")
    assert key("what is 2+2?") != key("what is 2+3?")
    assert key("<image>?", b"a") != key("<image>?", b"b")
    assert [script(text) for text in ("hello wörld", "你好吗 a", "привет", "1 + 1")] == [
        "latin",
        "cjk",
        "cyrillic",
        "none",
    ]


def test_duplicates_and_leaks_are_found_by_row(tmp_path: Path) -> None:
    rows = [{"prompt": question(i), "label": str(i)} for i in range(30)]
    rows[7]["prompt"] = rows[2]["prompt"].upper()
    rows[9]["prompt"] = rows[3]["prompt"] + " Explain."
    data = write(tmp_path / "train.parquet", rows)
    evaluation = [{"prompt": question(11), "label": "x"}, {"prompt": question(12) + " Say it.", "label": "y"}]
    held_out = write(tmp_path / "eval.parquet", evaluation)
    report = validate(data)
    assert report.ok
    assert report.stats["duplicates"] == 1
    report = validate(data, checks=Checks(unique=True, near=0.8, against=str(held_out)))
    found = {finding.rule: [row for row, _ in finding.rows] for finding in report.findings}
    assert found == {"duplicate": [7], "near duplicate": [9], "leak": [11, 12]}
    reasons = dict(next(f for f in report.findings if f.rule == "leak").rows)
    assert reasons[11] == "the same as evaluation row 0"
    assert reasons[12].endswith("like evaluation row 1")
    assert {name: report.stats[name] for name in ("duplicates", "near_duplicates", "leaks")} == {
        "duplicates": 1,
        "near_duplicates": 1,
        "leaks": 2,
    }
    assert validate(data, checks=Checks(unique=True, max_bad_share=0.05)).ok


def test_labels_that_the_reward_cannot_use_break_a_rule(tmp_path: Path) -> None:
    labels = ["42", r"\frac{1}{2}", r"\boxed{", "3"]
    data = write(tmp_path / "d.parquet", [{"prompt": question(i), "label": x} for i, x in enumerate(labels)])
    report = validate(data, checks=Checks(rm_type="math"))
    (finding,) = report.findings
    assert (finding.rule, [row for row, _ in finding.rows]) == ("label sanity", [2])
    with pytest.raises(DataError, match="maths"):
        validate(data, checks=Checks(rm_type="maths"))


@pytest.mark.parametrize(
    ("label", "metadata", "reason"),
    [
        ("B", {"choices": ["x", "y"]}, None),
        ("2", {"choices": ["x", "y"], "valid_letters": ["1", "2"]}, None),
        ("C", {"choices": ["x", "y"]}, "none of the letters"),
        ("A", {"choices": ["x", "x "]}, "two of the choices are the same"),
        ("A", {"choices": ["x"]}, "no list 'choices'"),
        ("A", {"choices": ["x", "y"], "valid_letters": ["A"]}, "2 choices, but 1 letters"),
    ],
)
def test_choices(label: str, metadata: dict[str, Any], reason: str | None) -> None:
    assert (reason or "None") in str(choice_defect(label, metadata))


def test_tools_and_media() -> None:
    assert tools_defect({"tools": [{"type": "function", "function": {"name": "zoom"}}]}) is None
    assert tools_defect({"extra_info": {"tools_kwargs": {"zoom": {}}}}) is None
    assert tools_defect({"tools": [{"type": "function"}]}) == "tool 0 has no name"
    assert "neither" in str(tools_defect({}))
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "PNG")
    item = {"bytes": buffer.getvalue(), "path": None}
    assert media_defect("<image>", {"images": [item]}) is None
    assert "2 <image> for 1" in str(media_defect("<image><image>", {"images": [item]}))
    assert "does not decode" in str(media_defect("<image>", {"images": [{"bytes": b"x", "path": None}]}))
    assert "none of the columns" in str(media_defect("<image>", {}))


def test_bad_rows_are_set_aside_and_good_ones_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": question(i), "label": "" if i in (3, 5) else str(i)} for i in range(8)]
    data = write(tmp_path / "d.parquet", rows)
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({"prompt": "q", "label": "a"}) + "\n{broken\n")
    aside, clean = tmp_path / "bad.jsonl", tmp_path / "good.parquet"
    arguments = ["validate", str(data), str(more), "--quarantine", str(aside), "--clean", str(clean)]
    assert main([*arguments, "--docs", str(tmp_path / "docs")]) == 0
    out = capsys.readouterr().out
    assert "FAIL  label" in out
    assert "3 rows set aside" in out
    assert pq.read_table(clean)["label"].to_pylist() == ["0", "1", "2", "4", "6", "7", "a"]
    entries = [json.loads(line) for line in aside.read_text().splitlines()]
    assert [(entry["file"], entry["row"]) for entry in entries] == [
        ("d.parquet", 3),
        ("d.parquet", 5),
        ("more.jsonl", 1),
    ]
    assert entries[0]["reason"] == "label: the label is an empty string"
    assert "not JSON" in entries[2]["reason"]
    assert "<svg" in (tmp_path / "docs" / "figures.html").read_text()
    assert main(["validate", str(data)]) == 1
    assert main(["validate", str(data), "--task", "poetry"]) == 1
    assert "known tasks: text, multiple-choice, multimodal, agentic" in capsys.readouterr().err
