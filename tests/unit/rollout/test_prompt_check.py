"""Rows that no role could use are found before anything starts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relax_engine.rollout.data_source import DataSettings
from relax_engine.rollout.prompt_check import check_prompts
from relax_engine.rollout.prompts import PromptDataError


@pytest.fixture
def check(tmp_path: Path, tokenizer: Any) -> Callable[..., int]:
    """Checks rows; returns how often the tokenizer was needed."""

    def check(rows: list[dict[str, Any]], **settings: Any) -> int:
        path = tmp_path / "prompts.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
        loads: list[int] = []

        def load() -> Any:
            loads.append(1)
            return tokenizer

        check_prompts(DataSettings(prompt_data=[str(path)], **settings), load)
        return len(loads)

    return check


def test_a_prompt_above_the_limit_is_named_among_many_short_ones(check: Callable[..., int]) -> None:
    rows = [{"input": "x" * 5} for _ in range(500)]
    assert check(rows, max_prompt_tokens=20) == 0
    assert check([*rows, {"input": "x" * 20}], max_prompt_tokens=20) == 1
    with pytest.raises(PromptDataError, match=r"row 500 .* has 21 tokens, the limit is 20"):
        check([*rows, {"input": "x" * 21}], max_prompt_tokens=20, shuffle=True)


def test_the_chat_template_counts(check: Callable[..., int]) -> None:
    """Ten bytes of text, and some tokens of the template around them."""
    rows = [{"input": [{"role": "user", "content": "x" * 10}]}]
    assert check(rows, max_prompt_tokens=40, apply_chat_template=True) == 0
    with pytest.raises(PromptDataError, match=r"row 0 .*the limit is 15"):
        check(rows, max_prompt_tokens=15, apply_chat_template=True)


def test_labels_are_text(check: Callable[..., int]) -> None:
    assert check([{"input": "a", "label": "1"}, {"input": "b", "label": None}], label_key="label") == 0
    with pytest.raises(PromptDataError, match=r"row 1 .*: label 4 is int64, not a string; .*'label' first"):
        check([{"input": "a", "label": None}, {"input": "b", "label": 4}], label_key="label")
