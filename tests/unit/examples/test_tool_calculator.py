"""The calculator's data, tool and reward are what they claim to be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from examples.tool_calculator.env_tool_calculator import build_env, calculate
from examples.tool_calculator.make_data import CLOSE, OPEN, make_data
from examples.tool_calculator.reward_tool_calculator import reward_func
from relax_engine.types import Sample


@pytest.mark.parametrize(
    ("expression", "value"),
    [("37*8", "296"), ("12-90", "-78"), (" 7 + 8 ", "15"), ("2**9", "error"), ("__import__", "error"), ("", "error")],
)
def test_the_tool_works_out_two_numbers_and_nothing_else(expression: str, value: str) -> None:
    assert calculate(expression) == value


def test_no_question_is_in_two_sets_and_what_is_taught_is_right(tmp_path: Path) -> None:
    rows = {split: pq.read_table(path).to_pylist() for split, path in make_data(tmp_path).items()}
    asked = {split: {row["prompt"][0]["content"] for row in table} for split, table in rows.items()}
    assert not asked["train"] & asked["heldout"]
    assert not asked["sft"] & (asked["train"] | asked["heldout"])
    call, answer = rows["sft"][:2]
    question = call["prompt"][0]["content"].removesuffix("?")
    assert call["label"] == f"{OPEN}{question}{CLOSE}"
    assert answer["prompt"][2]["content"] == answer["label"] == calculate(question)


async def test_a_call_is_answered_and_the_value_scores() -> None:
    sample = Sample(label="296")
    env = build_env(sample, SimpleNamespace(max_turns=3))
    await env.reset()
    observation, done, _ = await env.step(f"{OPEN}37*8{CLOSE}")
    assert (env.format_observation(observation), done) == ([{"role": "tool", "content": "296"}], False)
    _, done, info = await env.step("296")
    assert done
    sample.response = f"{OPEN}37*8{CLOSE}\n296\n296"
    sample.metadata["environment"] = {**info, "turns": 2, "stop": "done"}
    assert await reward_func(None, sample) == {"score": 1.0, "tool_calls": 1.0, "turns": 2.0}
    sample.metadata["environment"]["stop"] = "max_turns"
    assert (await reward_func(None, sample))["score"] == 0.0
