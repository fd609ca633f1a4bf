"""The order of prompts, exact positions, and how a row becomes a prompt group."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relax_engine.rollout.data_source import DataSettings, PromptDataSource
from relax_engine.rollout.prompts import PromptDataError

ROWS = 6
Make = Callable[..., PromptDataSource]


@pytest.fixture
def make(tmp_path: Path, tokenizer: Any) -> Make:
    """Sources over a file of rows, six numbered ones by default."""

    def make(rows: list[dict] | None = None, *, samples: int = 2, **settings: Any) -> PromptDataSource:
        path = tmp_path / "prompts.parquet"
        rows = rows or [{"input": f"q{i}", "label": str(i), "metadata": {"n": i}} for i in range(ROWS)]
        pq.write_table(pa.Table.from_pylist(rows), path)
        return PromptDataSource(
            DataSettings(prompt_data=[str(path)], label_key="label", **settings), tokenizer, samples
        )

    return make


def labels(source: PromptDataSource, count: int) -> list[str]:
    return [group[0].label for group in source.get_groups(count)]


def test_without_shuffling_epochs_repeat_the_file(make: Make) -> None:
    assert labels(make(), 2 * ROWS + 1) == [*"012345", *"012345", "0"]


def test_epochs_are_permutations_of_seed_and_epoch_alone(make: Make) -> None:
    source = make(shuffle=True, seed=1)
    epochs = [labels(source, ROWS) for _ in range(3)]
    assert all(sorted(epoch) == [*"012345"] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    # The order does not depend on how many are asked for at a time.
    again = make(shuffle=True, seed=1)
    assert [labels(again, 1)[0] for _ in range(3 * ROWS)] == [label for epoch in epochs for label in epoch]
    assert labels(make(shuffle=True, seed=2), ROWS) != epochs[0]


def test_the_position_counts_groups_over_epochs(make: Make) -> None:
    source = make()
    for taken in range(1, 3 * ROWS):
        source.get_groups(1)
        position = source.position
        assert position.group_index == taken
        assert position.epoch * ROWS + position.offset == taken
        assert 0 <= position.offset < ROWS


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_resume_at_every_position_continues_the_order(make: Make, shuffle: bool) -> None:
    """Epoch boundaries included (verl#5725), after a first resume too (prime-rl#3299, KempnerForge#57)."""
    whole = make(shuffle=shuffle).get_groups(3 * ROWS)
    source = make(shuffle=shuffle)
    for taken in range(3 * ROWS - 2):
        resumed = make(shuffle=shuffle)
        resumed.restore(json.loads(json.dumps(source.position.to_dict())))
        assert resumed.get_groups(1) == whole[taken : taken + 1]
        again = make(shuffle=shuffle)
        again.restore(resumed.position.to_dict())
        assert again.get_groups(2) == whole[taken + 1 : taken + 3]
        source.get_groups(1)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_group_is_made_from_its_number_at_any_time(make: Make, shuffle: bool) -> None:
    """Across epochs and in any order, without moving the source."""
    source = make(shuffle=shuffle)
    whole = source.get_groups(3 * ROWS)
    other = make(shuffle=shuffle)
    for number in (2 * ROWS, 0, 3 * ROWS - 1, ROWS + 2, ROWS - 1):
        assert other.group(number) == whole[number]
    assert other.position.group_index == 0
    position = json.loads(json.dumps(source.position_at(ROWS + 2, [ROWS - 2]).to_dict()))
    other.restore(position)
    assert other.get_groups(1) == [whole[ROWS + 2]]


def build_prompt(prompt: str, row: dict[str, Any]) -> str:
    return f"{row['metadata']['n']}: {prompt}!"


def test_a_function_builds_prompts_from_their_rows(make: Make) -> None:
    source = make(custom_prompt_path=f"{__file__}:build_prompt")
    group = source.group(4)
    assert group[0].prompt == "4: q4!"
    assert source.tokenizer.decode(group[0].tokens) == "4: q4!"


def test_three_resumes_within_epochs_follow_one_another(make: Make) -> None:
    whole = [group[0].index for group in make(shuffle=True).get_groups(20)]
    seen: list[int] = []
    position = None
    for count in (4, 2, 7, 7):
        source = make(shuffle=True)
        if position is not None:
            source.restore(position)
        seen += [group[0].index for group in source.get_groups(count)]
        position = source.position.to_dict()
    assert seen == whole


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [{"input": f"q{i}", "label": "x", "metadata": None} for i in range(ROWS)]},
        {"rows": [{"input": f"q{i}", "label": str(i), "metadata": None} for i in range(ROWS - 1)]},
        {"rows": [{"input": f"q{i}", "label": str(i), "metadata": None} for i in (1, 0, 2, 3, 4, 5)]},
        {"seed": 7},
        {"shuffle": False},
    ],
)
def test_a_resume_on_other_data_is_refused(make: Make, change: dict[str, Any]) -> None:
    source = make(shuffle=True)
    source.get_groups(2)
    saved = source.position.to_dict()
    with pytest.raises(PromptDataError, match=r"prompts\.parquet.* changed since the checkpoint.*start a new run"):
        make(**{"shuffle": True, **change}).restore(saved)


def test_metadata_may_change_between_runs(make: Make) -> None:
    position = make().position.to_dict()
    make([{"input": f"q{i}", "label": str(i), "metadata": {"m": 2}} for i in range(ROWS)]).restore(position)


def test_sample_indices_are_unique_over_the_run(make: Make) -> None:
    groups = make(samples=3).get_groups(2 * ROWS)
    assert [sample.index for group in groups for sample in group] == list(range(3 * 2 * ROWS))
    assert [[sample.group_index for sample in group] for group in groups] == [[i] * 3 for i in range(2 * ROWS)]


def test_samples_of_a_group_share_nothing_that_can_change(make: Make) -> None:
    first, second = make(metadata_key="metadata").get_groups(1)[0]
    first.tokens.append(1)
    first.metadata["seen"] = True
    assert len(second.tokens) == 2
    assert second.metadata == {"n": 0}


def test_a_label_must_be_a_string(make: Make) -> None:
    source = make([{"input": "q", "label": 4}])
    with pytest.raises(
        PromptDataError, match=r"row 0 of .*prompts\.parquet.*: label 4 is int, not a string; .*relax data convert"
    ):
        source.get_groups(1)


def test_a_prompt_that_is_too_long_is_named_with_the_limit(make: Make) -> None:
    rows = [{"input": "ok", "label": ""}, {"input": "x" * 9, "label": ""}]
    assert len(make(rows, max_prompt_tokens=9).get_groups(2)) == 2
    source = make(rows, max_prompt_tokens=8)
    source.get_groups(1)
    message = r"row 1 of .*prompts\.parquet.*: the prompt has 9 tokens, the limit is 8.*max-prompt-len"
    with pytest.raises(PromptDataError, match=message):
        source.get_groups(1)


def test_messages_need_the_chat_template(make: Make) -> None:
    source = make([{"input": [{"role": "user", "content": "hi"}], "label": ""}])
    with pytest.raises(PromptDataError, match=r"row 0.*list of messages; pass --apply-chat-template"):
        source.get_groups(1)


def rendered(source: PromptDataSource) -> str:
    return source.tokenizer.decode(source.get_groups(1)[0][0].tokens)


def test_text_and_messages_render_the_same(make: Make) -> None:
    expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert rendered(make([{"input": "hi", "label": ""}], apply_chat_template=True)) == expected
    messages = [{"role": "user", "content": "hi"}]
    assert rendered(make([{"input": messages, "label": ""}], apply_chat_template=True)) == expected
    assert rendered(make([{"input": "hi", "label": ""}])) == "hi"


@pytest.mark.parametrize("prompt", ["hi", [{"role": "user", "content": "hi"}]])
def test_the_system_prompt_comes_first(make: Make, prompt: Any) -> None:
    source = make([{"input": prompt, "label": ""}], apply_chat_template=True, system_prompt="be kind")
    assert rendered(source).startswith("<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhi<|im_end|>")


def test_a_prompt_keeps_its_own_system_message(make: Make) -> None:
    own = [{"role": "system", "content": "mine"}, {"role": "user", "content": "hi"}]
    text = rendered(make([{"input": own, "label": ""}], apply_chat_template=True, system_prompt="be kind"))
    assert text.startswith("<|im_start|>system\nmine<|im_end|>\n<|im_start|>user\nhi")
    assert "be kind" not in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [({"a": 1, "b": "x"}, {"a": 1, "b": "x"}), ('{"a": 1, "b": "x"}', {"a": 1, "b": "x"}), (None, {})],
)
def test_metadata_is_a_struct_or_json(make: Make, value: Any, expected: dict) -> None:
    source = make([{"input": "q", "label": "", "metadata": value}], metadata_key="metadata")
    assert source.get_groups(1)[0][0].metadata == expected


def test_metadata_is_optional(make: Make) -> None:
    assert make([{"input": "q", "label": ""}], metadata_key="metadata").get_groups(1)[0][0].metadata == {}


@pytest.mark.parametrize("value", ["{not json", "[1, 2]", 5])
def test_other_metadata_is_refused_with_its_row(make: Make, value: Any) -> None:
    source = make([{"input": "q", "label": "", "metadata": value}], metadata_key="metadata")
    with pytest.raises(PromptDataError, match=r"row 0 of .*parquet.*: metadata must be a struct or a JSON object, got"):
        source.get_groups(1)
