"""Columns as JSON text equal what `json` writes of each value; whole-column conversion equals row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.formats import FORMATS
from data_prep.formats.options import ColumnOptions
from data_prep.json_text import dumps, json_texts
from data_prep.schema import to_columns

TEXT = st.text(max_size=12) | st.sampled_from(['a"b', "\\", "\n\t\r\b\f", "\x00\x1f\x7f", "é字🙂", "null", ""])
FLAT = st.none() | TEXT
FIELDS = st.fixed_dictionaries(
    {
        "text": FLAT,
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "x": st.none() | st.floats(),
        "yes": st.none() | st.booleans(),
        "list": st.none() | st.lists(FLAT, max_size=3),
        "nested": st.none()
        | st.fixed_dictionaries({"a": FLAT, "b": st.none() | st.lists(st.integers(0, 9), max_size=2)}),
        "raw": st.none() | st.binary(max_size=4),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.none() | FIELDS, min_size=1, max_size=6), st.integers(0, 3))
def test_columns_equal_values(values: list[Any], skip: int) -> None:
    array = pa.array(values).slice(min(skip, len(values) - 1))
    assert json_texts(array).to_pylist() == [dumps(value) for value in array.to_pylist()]


def test_the_text_is_what_the_standard_library_writes() -> None:
    value = {"b": [1, None, "é\n"], "a": {"x": 1.5}}
    assert dumps(value) == json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    assert dumps({"kept": 0, "gone": None, "nan": float("nan")}) == '{"kept":0}'


MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "tool", "human"]), "content": FLAT}),
    max_size=2,
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.none() | MESSAGES | st.just([{"role": "user", "content": "q"}]),
            "reward_model": st.fixed_dictionaries({"style": st.just("rule"), "ground_truth": TEXT | st.none()}),
            "extra_info": st.none() | st.fixed_dictionaries({"index": st.integers(0, 9), "answer": FLAT}),
        }
    ),
    min_size=1,
    max_size=4,
)
TYPE = pa.schema(
    {
        "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
        "extra_info": pa.struct({"index": pa.int64(), "answer": pa.string()}),
    }
)


@settings(max_examples=300, deadline=None)
@given(ROWS)
def test_a_batch_at_once_equals_its_rows(rows: list[dict[str, Any]]) -> None:
    verl = FORMATS["verl"]
    batch = pa.RecordBatch.from_pylist(rows, TYPE)
    assert verl.convert_columns is not None
    fast = verl.convert_columns(batch)
    try:
        slow = to_columns([verl.convert(row, ColumnOptions()) for row in batch.to_pylist()])
    except ValueError:
        assert fast is None
        return
    if fast is None:  # never for plain rows: see the next test
        return
    assert fast.prompt.to_pylist() == slow.prompt.to_pylist()
    assert fast.label.to_pylist() == slow.label.to_pylist()
    assert fast.metadata.to_pylist() == slow.metadata.to_pylist()


def test_plain_rows_take_the_fast_way(tmp_path: Path) -> None:
    row = {"prompt": [{"role": "user", "content": "问题"}], "reward_model": {"style": "rule", "ground_truth": "答"}}
    pq.write_table(pa.Table.from_pylist([row] * 3), tmp_path / "a.parquet")
    (batch,) = pq.ParquetFile(tmp_path / "a.parquet").iter_batches()
    convert_columns = FORMATS["verl"].convert_columns
    assert convert_columns is not None
    columns = convert_columns(batch)
    assert columns is not None
    assert columns.metadata.to_pylist() == ['{"reward_style":"rule"}'] * 3
