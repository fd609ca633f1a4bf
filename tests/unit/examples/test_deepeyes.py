"""The zoom example's pictures, tools and reward are what they claim to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageChops

from examples.deepeyes import make_data as data
from examples.deepeyes.env_deepeyes import DeepEyes, build_env, rotate, zoom
from examples.deepeyes.reward_deepeyes import reward_func
from relax_engine.multimodal.content import open_image, read_medium
from relax_engine.rollout.prompt_media import MediaReader
from relax_engine.types import Sample

LEFT, RIGHT = (200, 0, 0), (0, 0, 200)


def two_halves() -> Image.Image:
    picture = Image.new("RGB", (40, 20), LEFT)
    picture.paste(RIGHT, (20, 0, 40, 20))
    return picture


def started() -> DeepEyes:
    sample = Sample(multimodal_inputs={"image": [read_medium("image", two_halves(), MediaReader(None))]})
    return build_env(sample)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_each_call_works_on_the_picture_seen_last() -> None:
    env = started()
    observation, done, info = env.step("look " + call("image_zoom_in_tool", bbox_2d=[500, 0, 1000, 1000]))
    (near,) = observation["multi_modal_data"]["image"]
    assert (near.size, near.getcolors(), done, info) == ((20, 20), [(400, RIGHT)], False, {"tool_calls": 1})
    assert env.format_observation(observation)["content"][0] == {"type": "image"}
    observation, _, info = env.step(call("image_zoom_in_tool", bbox_2d=[0, 0, 500, 1000]))
    (nearer,) = observation["multi_modal_data"]["image"]
    assert (nearer.size, nearer.getcolors(), info) == ((10, 20), [(200, RIGHT)], {"tool_calls": 2})
    _, done, info = env.step("<answer>blue</answer>")
    assert (done, info) == (True, {"tool_calls": 2})


def test_a_turned_picture_shows_its_left_side_below() -> None:
    observation, _, _ = started().step(call("image_rotate_tool", angle=90))
    (turned,) = observation["multi_modal_data"]["image"]
    assert turned.size == (20, 40)
    assert (turned.getpixel((10, 2)), turned.getpixel((10, 37))) == (RIGHT, LEFT)


@pytest.mark.parametrize(
    "text",
    [
        call("image_zoom_in_tool", bbox_2d=[500, 0, 500, 1000]),
        call("image_zoom_in_tool", bbox_2d=[0, 0, 1001, 1000]),
        call("image_zoom_in_tool", bbox_2d=[0, 0, 1000]),
        call("image_zoom_in_tool", bbox_2d=[0, 0, 100, 1000]),
        call("image_zoom_in_tool", bbox_2d="all"),
        call("image_zoom_in_tool", bbox_2d=[0, 0, float("nan"), 1000]),
        call("image_zoom_in_tool"),
        call("image_rotate_tool", angle=float("inf")),
        call("image_rotate_tool", angle="ninety"),
        call("format_disk", angle=90),
        "<tool_call>[1]</tool_call>",
        "<tool_call>{</tool_call>",
        "<tool_call></tool_call>",
    ],
)
def test_a_call_that_cannot_be_carried_out_is_answered_and_not_counted(text: str) -> None:
    env = started()
    assert env.step(text) == ({"obs_str": "error"}, False, {"tool_calls": 0})
    assert env.picture.size == (40, 20)


def test_what_a_zoom_and_a_turn_refuse_is_named() -> None:
    with pytest.raises(ValueError, match=r"\[0, 0, 100, 1000\] is 4 x 20 pixels, less than 8"):
        zoom(two_halves(), [0, 0, 100, 1000])
    with pytest.raises(ValueError, match="angle 361 is not from -360 to 360"):
        rotate(two_halves(), 361)


@pytest.mark.parametrize(
    ("response", "notes", "score"),
    [
        ("<answer>taxi</answer>", {"stop": "done", "tool_calls": 1}, 2.0),
        ("<answer> taxi </answer>\n", {"stop": "done", "tool_calls": 0}, 0.8),
        ("<answer>hole</answer>", {"stop": "done", "tool_calls": 2}, 0.0),
        ("taxi", {"stop": "done", "tool_calls": 1}, -0.2),
        ("<answer>taxi</answer> or so", {"stop": "done", "tool_calls": 1}, -0.2),
        ("<answer>hole</answer><answer>taxi</answer>", {"stop": "done", "tool_calls": 1}, -0.2),
        ("<answer>taxi</answer>", {"stop": "length", "tool_calls": 1}, -0.2),
        ("", {}, -0.2),
    ],
)
async def test_the_reward_by_its_parts(response: str, notes: dict[str, Any], score: float) -> None:
    sample = Sample(response=response, label="taxi", metadata={"environment": notes})
    assert (await reward_func(None, sample))["score"] == pytest.approx(score)


def test_what_is_taught_zooms_into_the_place_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, rows in (("TRAIN_ROWS", 4), ("HELDOUT_ROWS", 4), ("SFT_ROWS", 48)):
        monkeypatch.setattr(data, name, rows)
    rows = {split: pq.read_table(path).to_pylist() for split, path in data.make_data(tmp_path).items()}
    assert {split: len(table) for split, table in rows.items()} == {"heldout": 4, "train": 4, "sft": 48}
    assert 6 < sum(row["label"].startswith(data.CALL) for row in rows["sft"][::2]) < 18
    for look, say in zip(rows["sft"][::2], rows["sft"][1::2], strict=True):
        question, called, shown = (message["content"] for message in say["prompt"])
        assert (look["prompt"], shown) == (say["prompt"][:1], "<image>")
        assert look["label"] in (called, say["label"])
        left, top, *_ = json.loads(called.removeprefix(data.CALL).removesuffix(data.CALLED))
        row, column = ("top", "middle", "bottom")[top // 300], ("left", "centre", "right")[left // 300]
        assert question == f"<image>{data.ASK}{row} {column}?"
        whole, near = (read_medium("image", image, MediaReader(None)) for image in say["images"])
        observation, _, _ = build_env(Sample(multimodal_inputs={"image": [whole]})).step(called)
        (seen,) = observation["multi_modal_data"]["image"]
        assert seen.size == (data.TILE, data.TILE)
        assert ImageChops.difference(seen, open_image(near)).getbbox() is None


def test_each_thing_is_drawn_in_its_place() -> None:
    names = [*data.THINGS, *reversed(data.THINGS), "card"]
    picture = data.draw(np.random.default_rng(0), names)
    red = {
        place
        for place, box in data.PLACES.items()
        for count, (r, g, b) in zoom(picture, box).getcolors(data.TILE**2)
        if count > 100 and r > 180 and g < 130 and b < 130
    }
    assert red == {place for place, name in zip(data.PLACES, names, strict=True) if name == "card"}
