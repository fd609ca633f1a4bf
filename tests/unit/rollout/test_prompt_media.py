"""Rows with media become prompts with a token per feature, and rows whose media are broken say so or are skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from examples.tiny_media import make_model
from relax_engine.multimodal.content import open_image
from relax_engine.multimodal.processor import MediaBudget
from relax_engine.rollout.buffer import pack_groups, unpack_groups
from relax_engine.rollout.data_source import DataSettings, PromptDataSource
from relax_engine.rollout.prompt_media import MediaSettings
from relax_engine.rollout.prompts import PromptDataError
from relax_engine.rollout.tokenizer import load_tokenizer
from relax_engine.types import SampleStatus

BUDGET = MediaBudget(image_tokens=(1, 64))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index, size in enumerate([(32, 32), (48, 16), (16, 64)]):
        colour = np.full((size[1], size[0], 3), 50 * index, np.uint8)
        Image.fromarray(colour).save(tmp_path / f"{index}.png")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG and then nothing")
    return tmp_path


def source(folder: Path, model: Path, rows: list[dict[str, Any]], **settings: Any) -> PromptDataSource:
    path = folder / "prompts.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    media = {name: settings.pop(name) for name in ("skip_invalid", "workers") if name in settings}
    keys = settings.pop("keys", {"image": "images"})
    chosen = MediaSettings(keys=keys, model=str(model), budget=BUDGET, **media)
    settings = {"apply_chat_template": True, "input_key": "prompt"} | settings
    return PromptDataSource(
        DataSettings(prompt_data=[str(path)], media=chosen, **settings), load_tokenizer(str(model)), 2
    )


def pads(source: PromptDataSource, tokens: list[int]) -> list[int]:
    """Lengths of the runs of image tokens."""
    pad = source.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    return [len(run) for run in "".join("x" if token == pad else " " for token in tokens).split()]


def test_placeholders_and_parts_give_the_same_prompt(folder: Path, model: Path) -> None:
    images = ["0.png", "1.png"]
    text = source(folder, model, [{"prompt": "see <image> and <image>?", "images": images}])
    parts = [{"type": "text", "text": "see "}, {"type": "image", "text": None}, {"type": "text", "text": " and "},
             {"type": "image", "text": None}, {"type": "text", "text": "?"}]  # fmt: skip
    listed = source(folder, model, [{"prompt": [{"role": "user", "content": parts}], "images": images}])
    found, other = text.get_groups(1)[0], listed.get_groups(1)[0]
    assert found[0].tokens == other[0].tokens
    assert pads(text, found[0].tokens) == [4, 3]
    assert found[0].multimodal_train_inputs["image_grid_thw"].tolist() == [[1, 4, 4], [1, 2, 6]]
    assert [open_image(item).size for item in found[0].multimodal_inputs["image"]] == [(32, 32), (48, 16)]
    assert found[0].multimodal_train_inputs is found[1].multimodal_train_inputs


def test_rows_without_media_are_text(folder: Path, model: Path) -> None:
    prompts = source(folder, model, [{"prompt": "<image>", "images": ["0.png"]}, {"prompt": "plain", "images": []}])
    seeing, plain = prompts.get_groups(2)
    assert seeing[0].multimodal_train_inputs is not None
    assert (plain[0].multimodal_inputs, plain[0].multimodal_train_inputs) == (None, None)


def test_prompt_limits_count_media_tokens(folder: Path, model: Path) -> None:
    rows = [{"prompt": "<image>", "images": ["2.png"]}]
    text_tokens = 6 + 2  # the frame of the chat template, and the start and end of the image
    short = source(folder, model, rows, max_prompt_tokens=text_tokens + 3)
    with pytest.raises(PromptDataError, match=r"row 0 of .*: the prompt has (\d+) tokens, the limit is 11"):
        short.get_groups(1)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            {"prompt": "<image>", "images": ["broken.png"]},
            r"row 0 of .*, images\[0\]: image cannot be used",
        ),
        ({"prompt": "<image>", "images": ["9.png"]}, r"images\[0\]: .* file '9.png' does not exist"),
        ({"prompt": "<image><image>", "images": ["0.png"]}, r"row 0 of .* 2 of image for 1"),
        ({"prompt": "none", "images": ["0.png"]}, r"row 0 of .* 0 of image for 1"),
    ],
)
def test_errors_name_row_and_file(folder: Path, model: Path, row: dict[str, Any], told: str) -> None:
    with pytest.raises(PromptDataError, match=told):
        source(folder, model, [row]).get_groups(1)


def test_unusable_rows_are_skipped_alike_however_they_are_asked_for(folder: Path, model: Path) -> None:
    names = ["0.png", "broken.png", "1.png", "broken.png", "broken.png", "2.png"]
    rows = [{"prompt": f"{name} <image>", "images": [name]} for name in names]
    prompts = source(folder, model, rows, skip_invalid=True)
    groups = [group[0].prompt[:8] if isinstance(group[0].prompt, str) else None for group in prompts.get_groups(6)]
    assert groups == ["0.png <i", "1.png <i", "1.png <i", "2.png <i", "2.png <i", "2.png <i"]
    assert prompts.group(3)[0].tokens == source(folder, model, rows, skip_invalid=True).group(3)[0].tokens
    broken = [row for row in rows if "broken" in row["prompt"]]
    with pytest.raises(PromptDataError, match="does not decode"):
        source(folder, model, broken, skip_invalid=True).get_groups(1)


def test_checkpoints_keep_media_and_make_tensors_again(folder: Path, model: Path) -> None:
    prompts = source(folder, model, [{"prompt": "<image>", "images": ["0.png"]}])
    (group,) = prompts.get_groups(1)
    group[0].status = SampleStatus.ABORTED
    packed = pack_groups([group])
    (restored,) = prompts.restored(unpack_groups(packed)).values()
    for before, after in zip(group, restored, strict=True):
        assert after.multimodal_inputs == before.multimodal_inputs
        for name, array in before.multimodal_train_inputs.items():
            np.testing.assert_array_equal(after.multimodal_train_inputs[name], array)


def test_validation_counts_the_same_tokens(folder: Path, model: Path) -> None:
    from data_prep.tokens import context_of, load_counter

    content = (folder / "2.png").read_bytes()
    messages = [{"role": "user", "content": "<image> and <image>"}]
    row = {"prompt": messages, "images": [{"bytes": content, "path": "2.png"}, {"bytes": content, "path": "2.png"}]}
    count, budget = load_counter(model), MediaBudget()
    chosen = MediaSettings(keys={"image": "images"}, model=str(model), budget=budget)
    path = folder / "counted.parquet"
    pq.write_table(pa.Table.from_pylist([row]), path)
    settings = DataSettings([str(path)], input_key="prompt", apply_chat_template=True, media=chosen)
    (group,) = PromptDataSource(settings, load_tokenizer(str(model)), 1).get_groups(1)
    assert count(messages, row) == len(group[0].tokens)
    assert count(messages, {"images": row["images"][:1]}) is None
    assert count("plain", {}) == 5
    assert context_of(model) == 1023


def test_rows_of_media_count_their_bytes(folder: Path, model: Path) -> None:
    """The stream's memory is bounded by what rows say that they take."""
    from relax_engine.stream.columns import Column

    (group,) = source(folder, model, [{"prompt": "<image>", "images": ["0.png"]}]).get_groups(1)
    inputs = group[0].multimodal_train_inputs
    column = Column.objects([inputs, None])
    assert column.nbytes == 2 * 8 + inputs["pixel_values"].nbytes + 3 * 8
