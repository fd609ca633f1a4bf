"""What each source layout becomes."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data_prep.convert import ConvertOptions, convert
from data_prep.errors import DataError, DataValidationError
from data_prep.formats.options import ColumnOptions


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def one(tmp_path: Path, row: dict[str, Any], format: str = "auto", **options: Any) -> dict[str, Any]:
    result = convert(jsonl(tmp_path / "in.jsonl", [row]), tmp_path / "out.parquet", format=format, **options)
    (record,) = pq.read_table(result.path).to_pylist()
    return {**record, "metadata": json.loads(record["metadata"]), "format": result.format}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (1, 2, 3)).save(buffer, "PNG")
    return buffer.getvalue()


def test_gsm8k_takes_the_number_after_the_mark(tmp_path: Path) -> None:
    row = {"question": "How much?", "answer": "First <<3*400=1200>>1200.\n#### 1,200"}
    record = one(tmp_path, row, "gsm8k")
    assert (record["prompt"], record["label"]) == ([user("How much?")], "1200")
    assert record["metadata"] == {"data_source": "openai/gsm8k", "solution": row["answer"]}
    for answer in ("no mark: 12", "#### twelve", "####"):
        with pytest.raises(DataValidationError, match="expected '#### ' and a number"):
            one(tmp_path, row | {"answer": answer}, "gsm8k")


def test_math_takes_the_last_box_or_the_answer_column(tmp_path: Path) -> None:
    row = {"problem": "p", "solution": r"so \boxed{1} and \boxed{\frac{1}{2}}", "level": "Level 3"}
    record = one(tmp_path, row)
    assert (record["format"], record["label"], record["metadata"]["level"]) == ("math", r"\frac{1}{2}", "Level 3")
    assert one(tmp_path, row | {"answer": "0.5"})["label"] == "0.5"
    with pytest.raises(DataValidationError, match=r"no \\boxed"):
        one(tmp_path, row | {"solution": r"\boxed{1"})


def test_dapo_wants_a_number(tmp_path: Path) -> None:
    row = {"prompt": [user("p")], "reward_model": {"ground_truth": "34.0", "style": "rule"}, "data_source": "math_dapo"}
    assert one(tmp_path, row, "dapo")["label"] == "34"
    with pytest.raises(DataValidationError, match="is not a number"):
        one(tmp_path, row | {"reward_model": {"ground_truth": "x+1"}}, "dapo")


def test_gpqa_letters_follow_from_the_question(tmp_path: Path) -> None:
    row = {"Question": "Which?", "Correct Answer": "right", "Subdomain": "Optics", "Other": "not kept"}
    row |= {f"Incorrect Answer {n}": f"wrong {n}" for n in (1, 2, 3)}
    record = one(tmp_path, row)
    facts = record["metadata"]
    assert record["label"] == facts["correct_letter"] == "ABCD"[facts["choices"].index("right")]
    assert f"{record['label']}) right" in record["prompt"][0]["content"]
    assert (facts["valid_letters"], facts["Subdomain"], "Other" in facts) == (list("ABCD"), "Optics", False)
    assert one(tmp_path, row)["prompt"] == record["prompt"]
    letters = {one(tmp_path, row | {"Question": f"Which {i}?"})["label"] for i in range(12)}
    assert len(letters) > 1
    with pytest.raises(DataValidationError, match="two of the choices are the same"):
        one(tmp_path, row | {"Incorrect Answer 2": "right "})


def test_ifeval_keeps_what_its_reward_reads(tmp_path: Path) -> None:
    row = {"key": 5, "prompt": "Write.", "instruction_id_list": ["a:b", "c:d"], "kwargs": [{"n": 3, "m": None}, {}]}
    record = one(tmp_path, row)
    expected = {"instruction_id_list": ["a:b", "c:d"], "kwargs": [{"n": 3}, {}]}
    assert json.loads(record["label"]) == expected
    assert record["metadata"] == {"key": 5, "prompt_text": "Write."} | expected
    with pytest.raises(DataValidationError, match="same length"):
        one(tmp_path, row | {"kwargs": [{}]})


def test_openai_chat_with_parts_tools_and_an_answer(tmp_path: Path) -> None:
    url = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    call = {"id": "c1", "type": "function", "function": {"name": "zoom", "arguments": '{"x": 1}'}}
    row = {
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "?"}],
            },
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
            {"role": "assistant", "content": "a cat"},
        ],
        "tools": [{"type": "function", "function": {"name": "zoom"}}],
    }
    record = one(tmp_path, row)
    assert record["prompt"] == [
        {"role": "system", "content": "Be brief."},
        user("<image>?"),
        {"role": "assistant", "content": '<tool_call>\n{"name": "zoom", "arguments": {"x": 1}}\n</tool_call>'},
        {"role": "tool", "content": "done"},
    ]
    assert record["label"] == "a cat"
    assert record["images"] == [{"bytes": png(), "path": None}]
    assert record["metadata"] == {"tools": row["tools"]}
    assert one(tmp_path, row | {"label": "dog"})["label"] == "dog"
    with pytest.raises(DataValidationError, match="the last message is no assistant's"):
        one(tmp_path, {"messages": row["messages"][:2]})


def test_sharegpt_in_one_json_array(tmp_path: Path) -> None:
    rows = [
        {
            "conversations": [{"from": "human", "value": f"q{i}" + "x" * 5000}, {"from": "gpt", "value": f"a{i}"}],
            "id": i,
        }
        for i in range(600)
    ]
    source = tmp_path / "in.json"
    source.write_text(json.dumps(rows, indent=1))
    table = pq.read_table(convert(source, tmp_path / "out.parquet").path)
    assert table["label"].to_pylist() == [f"a{i}" for i in range(600)]
    part = pq.read_table(convert(f"{source}[7:9]", tmp_path / "out.parquet").path)
    assert part["source_row"].to_pylist() == [7, 8]
    source.write_text(json.dumps(rows)[:-3])
    with pytest.raises(DataError, match="element 599: not JSON"):
        convert(source, tmp_path / "out.parquet")
    system = {"system": "S", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    assert one(tmp_path, system)["prompt"] == [{"role": "system", "content": "S"}, user("q")]
    with pytest.raises(DataValidationError, match="turn 0 is from 'narrator'"):
        one(tmp_path, {"conversations": [{"from": "narrator", "value": "q"}]})


def test_redaccel_extra_info_becomes_the_metadata(tmp_path: Path) -> None:
    row = {"prompt": "q", "solution": ["a", "b"], "extra_info": {"question": "q?", "split": None}, "source": "s"}
    record = one(tmp_path, row)
    assert (record["format"], record["label"]) == ("redaccel", '["a","b"]')
    assert record["metadata"] == {"question": "q?", "source": "s"}


def test_verl_with_images_tools_and_structured_truth(tmp_path: Path) -> None:
    rows = [
        {
            "prompt": [user("<image> what?")],
            "reward_model": {"style": "rule", "ground_truth": {"target": ["a", "b"]}, "rubric": "r"},
            "preprocessed_images": [{"bytes": png(), "path": None}],
            "extra_info": {"need_tools_kwargs": True, "tools_kwargs": {"zoom": {"create_kwargs": {"x": 1}}}},
        }
    ]
    source = tmp_path / "in.parquet"
    pq.write_table(pa.Table.from_pylist(rows), source)
    (record,) = pq.read_table(convert(source, tmp_path / "out.parquet").path).to_pylist()
    assert record["label"] == '{"target":["a","b"]}'
    assert record["images"] == [{"bytes": png(), "path": None}]
    assert json.loads(record["metadata"]) == {
        "extra_info": rows[0]["extra_info"],
        "reward_model": {"rubric": "r"},
        "reward_style": "rule",
    }


def test_named_columns_of_any_table(tmp_path: Path) -> None:
    row = {"text_in": "q", "n": 42, "topic": "t"}
    options = ConvertOptions(ColumnOptions("text_in", "n"))
    record = one(tmp_path, row, options=options)
    assert (record["label"], record["metadata"]) == ("42", {"topic": "t"})
    with pytest.raises(DataError, match="are for --format qa; 'verl' fixes its columns"):
        one(tmp_path, row, "verl", options=options)
    with pytest.raises(DataError, match=r"the columns \['n', 'text_in', 'topic'\] fit no layout.*--format"):
        one(tmp_path, row)


def test_our_own_layout_stays_as_it_is(tmp_path: Path) -> None:
    record = one(tmp_path, {"prompt": "q", "label": "a", "metadata": {"k": 1}, "level": 2})
    path = tmp_path / "again.parquet"
    convert(tmp_path / "out.parquet", path)
    (again,) = pq.read_table(path).to_pylist()
    assert json.loads(again["metadata"]) == record["metadata"] == {"k": 1, "level": 2}
    assert again["prompt"] == record["prompt"] == [user("q")]


def test_urls_are_kept_and_fetched_only_on_request(tmp_path: Path) -> None:
    import fsspec

    with fsspec.open("memory://pictures/a.png", "wb") as stream:
        stream.write(png())
    row = {"prompt": "<image>?", "label": "a", "images": ["memory://pictures/a.png"]}
    assert one(tmp_path, row)["images"] == [{"bytes": None, "path": "memory://pictures/a.png"}]
    fetched = one(tmp_path, row, options=ConvertOptions(fetch_media=True))
    assert fetched["images"] == [{"bytes": png(), "path": "memory://pictures/a.png"}]
