"""Prompt files: slices, lists, formats, and what is said about a bad one."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.sources import Source, parse_spec
from relax_engine.rollout.prompts import PromptDataError, count_prompts, messages_of, prompt_tables


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    path = tmp_path / "ten.parquet"
    pq.write_table(pa.table({"prompt": [f"p{i}" for i in range(10)], "label": [str(i) for i in range(10)]}), path)
    return path


def jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prompts(spec: str | list[str]) -> list[str]:
    found = [prompt for table in prompt_tables(spec, columns=["prompt"]) for prompt in table["prompt"].to_pylist()]
    assert count_prompts(spec) == len(found)
    return found


@pytest.mark.parametrize(
    ("spec", "files"),
    [
        ("a.parquet", [Source("a.parquet")]),
        ("a.parquet[5:]", [Source("a.parquet", 5)]),
        ("a.parquet[:7]", [Source("a.parquet", 0, 7)]),
        ("  a.parquet[100:200] ", [Source("a.parquet", 100, 200)]),
        ("['a.parquet', 'b.jsonl[1:2]']", [Source("a.parquet"), Source("b.jsonl", 1, 2)]),
        (["x[1]/a.parquet[0:3]", "b.parquet"], [Source("x[1]/a.parquet", 0, 3), Source("b.parquet")]),
        ("dir[0:3]/a.parquet", [Source("dir[0:3]/a.parquet")]),  # a slice stands at the end
    ],
)
def test_a_value_names_files_and_rows(spec: str | list[str], files: list[Source]) -> None:
    assert parse_spec(spec) == files


@pytest.mark.parametrize(
    ("rows", "expected"),
    [("[2:5]", ["p2", "p3", "p4"]), ("[8:]", ["p8", "p9"]), ("[:1]", ["p0"]), ("[9:99]", ["p9"])],
)
def test_slices_take_the_rows_that_python_would(parquet: Path, rows: str, expected: list[str]) -> None:
    assert prompts(f"{parquet}{rows}") == expected


def test_files_keep_the_order_given(parquet: Path, tmp_path: Path) -> None:
    other = jsonl(tmp_path / "other.jsonl", [{"label": "x", "prompt": "q0"}, {"prompt": "q1", "label": "y"}])
    assert prompts([f"{other}[1:]", f"{parquet}[:2]", str(other)]) == ["q1", "p0", "p1", "q0", "q1"]
    assert prompts(str([str(other), f"{parquet}[3:4]"])) == ["q0", "q1", "p3"]


def test_lines_are_counted_over_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blank lines and a last line without an end among them; a block ends with a whole line."""
    monkeypatch.setattr("relax_engine.rollout.prompts._BLOCK_BYTES", 50)
    path = tmp_path / "lines.jsonl"
    path.write_text("\n\n".join(json.dumps({"prompt": f"p{i}" * (i + 1)}) for i in range(30)))
    every = [f"p{i}" * (i + 1) for i in range(30)]
    for start, stop in ((0, 30), (0, 1), (7, 8), (11, 29), (29, 30)):
        assert prompts(f"{path}[{start}:{stop}]") == every[start:stop]


def test_a_json_file_may_be_an_array(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"prompt": "a"}, {"prompt": "b"}]))
    assert prompts(str(path)) == ["a", "b"]
    path.write_text('[{"prompt": "a"}, 3]')
    with pytest.raises(PromptDataError, match=r"a\.json' cannot be read: row 1: element 1: expected an object"):
        prompts(str(path))


def test_a_directory_stands_for_its_files_in_order(parquet: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    jsonl(folder / "b.jsonl", [{"prompt": "b"}])
    jsonl(folder / "a.jsonl", [{"prompt": "a"}])
    (folder / "README.md").write_text("no prompts")
    assert prompts([str(folder), f"{parquet}[:1]"]) == ["a", "b", "p0"]


def damaged(path: Path) -> Path:
    """A valid footer over pages that are not."""
    pq.write_table(pa.table({"prompt": [f"text {i * 7919}" for i in range(2000)]}), path, compression="zstd")
    data = bytearray(path.read_bytes())
    data[40:4000] = bytes(3960)
    path.write_bytes(data)
    return path


def test_every_bad_file_is_named_with_the_way_out(parquet: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    text = tmp_path / "prompts.txt"
    text.write_text("hello")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(parquet.read_bytes()[:-10])
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "a"}\n{"prompt": \n')
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"prompt": "é"}\n'.encode("latin-1"))
    cases = {
        f"{tmp_path}/none.parquet": r"none\.parquet' does not exist",
        str(bare): r"/bare holds no data file; give",
        str(text): r"prompts\.txt': unknown format '\.txt'; known: ",
        str(cut): r"cut\.parquet' cannot be read",
        str(damaged(tmp_path / "damaged.parquet")): r"damaged\.parquet' cannot be read",
        str(broken): r"broken\.jsonl' cannot be read",
        str(empty): r"holds no rows; give a file with at least one prompt",
        f"{parquet}[10:20]": r"holds no rows; give a file with at least one prompt",
        f"{parquet}[5:2]": r"holds no rows",
        str([str(parquet), str(latin)]): r"latin\.jsonl' cannot be read: .*UTF8",
        "['a.parquet'": r"is not a list of paths",
        "[1, 2]": r"is not a list of paths",
    }
    for spec, message in cases.items():
        with pytest.raises(PromptDataError, match=message):
            prompts(spec)


def test_a_missing_column_is_named_with_those_that_exist(parquet: Path, tmp_path: Path) -> None:
    other = jsonl(tmp_path / "other.jsonl", [{"question": "q"}])
    with pytest.raises(
        PromptDataError, match=r"other\.jsonl' has no column 'prompt'; it has \['question'\].*--input-key"
    ):
        list(prompt_tables([str(parquet), str(other)], columns=["prompt"]))


def test_a_prompt_is_text_or_messages() -> None:
    assert messages_of("hello", "row 0") == "hello"
    # Parquet gives every message of a column the same keys; the absent ones are null.
    message = {"role": "user", "content": "hi", "tool_calls": None}
    assert messages_of([message], "row 0") == [{"role": "user", "content": "hi"}]
    for bad in ("", [], None, 3, [{"content": "no role"}], ["text"]):
        with pytest.raises(PromptDataError, match=r"row 17: a prompt is a non-empty string or a list of"):
            messages_of(bad, "row 17")
