"""Prompts made ready ahead of their use."""

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relax_engine.rollout.data_source import DataSettings, PromptDataSource
from relax_engine.rollout.prefetch import PromptPrefetcher
from relax_engine.rollout.prompts import PromptDataError
from relax_engine.utils.hooks import load_function

NOTE = f"{__file__}:note"
made: list[tuple[str, str]] = []


def note(prompt: str, row: dict[str, Any]) -> str:
    made.append((prompt, threading.current_thread().name))
    return prompt


@pytest.fixture
def source(tmp_path: Path, tokenizer: Any) -> PromptDataSource:
    path = tmp_path / "prompts.parquet"
    rows = [{"input": f"q{i}" if i != 6 else "x" * 50, "label": ""} for i in range(9)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    settings = DataSettings([str(path)], custom_prompt_path=NOTE, max_prompt_tokens=40)
    return PromptDataSource(settings, tokenizer, 2)


async def test_groups_are_those_of_the_source_and_made_once(source: PromptDataSource) -> None:
    # The file is loaded a second time, as a user's.
    seen = load_function(NOTE).__globals__["made"]
    seen.clear()
    with PromptPrefetcher(source, ahead=3) as prefetcher:
        groups = [await prefetcher.group(number) for number in (0, 1, 2)]
    assert [group[0].prompt for group in groups] == ["q0", "q1", "q2"]
    assert [group[1].index for group in groups] == [1, 3, 5]
    prompts = [prompt for prompt, _ in seen]
    assert prompts[:3] == ["q0", "q1", "q2"]
    assert len(set(prompts)) == len(prompts)
    assert all(name.startswith("prompts") for _, name in seen)


async def test_a_row_that_cannot_be_used_is_an_error_when_it_is_asked_for(source: PromptDataSource) -> None:
    with PromptPrefetcher(source, ahead=4) as prefetcher:
        assert (await prefetcher.group(4))[0].prompt == "q4"
        assert (await prefetcher.group(5))[0].prompt == "q5"
        with pytest.raises(PromptDataError, match=r"row 6 .* has 50 tokens"):
            await prefetcher.group(6)
        # A number behind the others, as after a resume.
        assert (await prefetcher.group(1))[0].prompt == "q1"
        assert (await prefetcher.group(7))[0].prompt == "q7"
