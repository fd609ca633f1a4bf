"""The demo's inputs are what they claim to be, and its chart shows the values it was given."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from examples.tiny_math import demo
from examples.tiny_math.make_data import make_data
from examples.tiny_math.make_model import build_tokenizer
from examples.tiny_math.reward_tiny_math import reward_func
from relax_engine.types import Sample


def words(path: Path) -> set[str]:
    return {row["prompt"][0]["content"].removeprefix("reverse ") for row in pq.read_table(path).to_pylist()}


def test_the_splits_are_disjoint_large_enough_and_correct(tmp_path: Path) -> None:
    paths = make_data(tmp_path)
    train, heldout, sft = (words(paths[split]) for split in ("train", "heldout", "sft"))
    assert len(train) >= 5000
    assert len(heldout) >= 500
    assert len(train | heldout | sft) == len(train) + len(heldout) + len(sft)
    row = pq.read_table(paths["heldout"]).to_pylist()[3]
    word = row["prompt"][0]["content"].removeprefix("reverse ")
    assert row["reward_model"] == {"style": "rule", "ground_truth": word[::-1]}
    assert row["extra_info"]["question"].endswith(f": {word}")


def test_the_seed_decides_every_byte(tmp_path: Path) -> None:
    sizes = {"train_rows": 50, "heldout_rows": 10, "sft_rows": 20}
    first, again = make_data(tmp_path / "a", **sizes), make_data(tmp_path / "b", **sizes)
    other = make_data(tmp_path / "c", seed=1, **sizes)
    for split in first:
        assert first[split].read_bytes() == again[split].read_bytes()
        assert first[split].read_bytes() != other[split].read_bytes()


@pytest.mark.parametrize("text", ["reverse abc", "Zürich 東京 🙂", "line\nline\ttab"])
def test_the_tokenizer_loses_no_text(text: str) -> None:
    tokenizer = build_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer) <= 300


def test_the_chat_template_spends_one_token_on_a_role() -> None:
    tokenizer = build_tokenizer()
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "ab"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"
    assert len(tokenizer.encode(text)) == 8


@pytest.mark.parametrize(("response", "reward"), [("cba", 1.0), (" cba\n", 1.0), ("CBA", 0.0), ("cb", 0.0), ("", 0.0)])
async def test_the_reward_is_exact(response: str, reward: float) -> None:
    assert await reward_func(None, Sample(response=response, label="cba")) == reward


def test_the_chart_puts_the_lowest_and_highest_mean_at_its_edges() -> None:
    lines = demo.chart([0.0, 0.0, 0.5, 0.5, 1.0, 1.0], width=3, height=3).splitlines()
    assert lines == [" 1.000 |  *", "       | *", " 0.000 |*", "       +---"]
    assert demo.chart([0.5, 0.5]).splitlines()[-2].startswith(" 0.500 |**")


def test_staleness_without_async_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--max-staleness", "2"])
    assert "needs --fully-async" in capsys.readouterr().err
