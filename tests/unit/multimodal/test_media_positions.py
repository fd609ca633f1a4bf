"""Positions of text, images and videos beside transformers' `get_rope_index`, and the accounting of placeholders."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import transformers
from tiny_media import (
    AUDIO,
    AUDIO_END,
    AUDIO_START,
    END,
    IMAGE,
    MELS,
    START,
    VIDEO,
    for_omni,
    for_transformers,
    qwen2_5_vl,
    qwen3_omni,
    qwen3_vl,
    sample,
)

from relax_engine.multimodal.families import media_family
from relax_engine.multimodal.media import MediaMismatchError, audio_tokens, blocks_of
from relax_engine.multimodal.positions import media_positions

LAYOUTS = ["tit", "it", "tvt", "vt", "titit", "tivtvit", "iivvt", "tti", "v", "tvititvt"]
KINDS = {
    "qwen2_5_vl": (qwen2_5_vl, transformers.Qwen2_5_VLForConditionalGeneration),
    "qwen3_vl": (qwen3_vl, transformers.Qwen3VLForConditionalGeneration),
}


@pytest.mark.parametrize("kind", KINDS)
def test_positions_are_those_of_transformers(kind: str) -> None:
    make, architecture = KINDS[kind]
    config = make()
    model = architecture(config).model
    family = media_family(config.to_dict())
    assert family is not None
    random = np.random.default_rng(7)
    for layout, _ in itertools.product(LAYOUTS, range(5)):
        tokens, inputs = sample(random, layout, frames_apart=family.frames_apart)
        arguments = for_transformers(tokens, inputs)
        expected, delta = model.get_rope_index(**arguments)
        found = media_positions(family, tokens, inputs)
        assert found.ids.dtype == np.int64
        np.testing.assert_array_equal(found.ids, expected[:, 0].numpy())
        if found.ids.max() < found.next:  # no video outlasts what follows it
            assert found.delta == int(delta)
        longer, _ = model.get_rope_index(**for_transformers([*tokens, 1], inputs))
        assert found.next == int(longer[0, 0, -1]), "the next token's position is that of the forward pass"


def _of_omni(model: Any, tokens: list[int], inputs: dict[str, np.ndarray], *, sound_track: bool = False) -> np.ndarray:
    """transformers' positions `[3, sequence]` of the thinker."""
    given = for_omni(tokens, inputs)
    lengths = given["feature_attention_mask"].sum(1) if "feature_attention_mask" in given else None
    grids = (given.get("image_grid_thw"), given.get("video_grid_thw"))
    seconds = given.get("video_second_per_grid")
    ids, mask = given["input_ids"], given["attention_mask"]
    found: np.ndarray = model.get_rope_index(ids, *grids, mask, sound_track, lengths, seconds)[0][:, 0].numpy()
    return found


@pytest.fixture(scope="module")
def omni() -> Any:
    config = qwen3_omni()
    return transformers.models.qwen3_omni_moe.Qwen3OmniMoeThinkerForConditionalGeneration(config)


def test_positions_of_omni_are_real_numbers(omni: Any) -> None:
    family = media_family(omni.config.to_dict())
    assert family is not None
    random = np.random.default_rng(11)
    for layout, _ in itertools.product(["tatit", "vta", "tvatit", "aat", "ita", "tt", "vvt"], range(4)):
        tokens, inputs = sample(random, layout, frames_apart=False)
        found = media_positions(family, tokens, inputs)
        np.testing.assert_array_equal(found.ids, _of_omni(omni, tokens, inputs))
        assert found.next == _of_omni(omni, [*tokens, 1], inputs)[0, -1]


def test_a_video_and_its_sound_track_share_their_time(omni: Any) -> None:
    family = media_family(omni.config.to_dict())
    assert family is not None
    random = np.random.default_rng(2)
    for frames, seconds, sound in [(3, 1.0, 180), (2, 0.3, 99), (1, 2.0, 230), (3, 0.1, 250)]:
        video = media_positions(family, [START, *[VIDEO] * (6 * frames), END], _video(random, frames, seconds)).ids[0]
        count = audio_tokens(sound, 50)
        both = sorted([(float(t) - 1, 0) for t in video[1:-1]] + [(float(t), 1) for t in range(count)])
        inner = [AUDIO if audio else VIDEO for _, audio in both]
        tokens = [1, 2, START, AUDIO_START, *inner, AUDIO_END, END, 3]
        mask = np.ones((1, sound), np.int64)
        inputs = _video(random, frames, seconds)
        inputs |= {"input_features": np.zeros((1, MELS, sound), np.float32), "feature_attention_mask": mask}
        found = media_positions(family, tokens, inputs)
        np.testing.assert_array_equal(found.ids, _of_omni(omni, tokens, inputs, sound_track=True))


def _video(random: np.random.Generator, frames: int, seconds: float) -> dict[str, np.ndarray]:
    """A video of 4 by 6 patches."""
    return {
        "pixel_values_videos": random.standard_normal((frames * 24, 96), np.float32),
        "video_grid_thw": np.array([[frames, 4, 6]]),
        "second_per_grid_ts": np.array([seconds], np.float32),
    }


def test_text_counts_on() -> None:
    family = media_family(qwen2_5_vl().to_dict())
    assert family is not None
    found = media_positions(family, [3, 4, 5], {})
    np.testing.assert_array_equal(found.ids, np.tile(np.arange(3), (3, 1)))
    assert (found.next, found.delta) == (3, 0)


def _one_image(height: int, width: int) -> dict[str, np.ndarray]:
    return {"pixel_values": np.zeros((height * width, 96), np.float32), "image_grid_thw": [[1, height, width]]}


def test_a_placeholder_that_the_model_wrote_is_text() -> None:
    family = media_family(qwen2_5_vl().to_dict())
    assert family is not None
    image = [START, *[IMAGE] * 6, END]
    tokens = [1, *image, 2, IMAGE, START, IMAGE, IMAGE, 3]
    (block,) = blocks_of(family, tokens, _one_image(4, 6), prompt=9)
    np.testing.assert_array_equal(block[0].tokens, np.arange(2, 8))
    later = [1, IMAGE, 2, *image]  # of one sample's second turn
    np.testing.assert_array_equal(blocks_of(family, later, _one_image(4, 6), prompt=1)[0][0].tokens, np.arange(4, 10))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([1, START, IMAGE, IMAGE, END], "2 image placeholders from token 2 on, where the next image has 6 features"),
        ([1, START, *[IMAGE] * 6, END, START, IMAGE, END], "1 image placeholders from token 10 on, where no image"),
        ([1, 2, 3], "1 image parts, and its 3 tokens place 0 of them: nowhere stand the 6 placeholders"),
    ],
)
def test_a_mismatch_names_the_counts(tokens: list[int], message: str) -> None:
    family = media_family(qwen2_5_vl().to_dict())
    assert family is not None
    with pytest.raises(MediaMismatchError, match=message):
        blocks_of(family, tokens, _one_image(4, 6), prompt=len(tokens))


def test_pixels_that_the_grid_does_not_describe() -> None:
    family = media_family(qwen2_5_vl().to_dict())
    assert family is not None
    inputs = {"pixel_values": np.zeros((20, 96), np.float32), "image_grid_thw": np.array([[1, 4, 6]])}
    with pytest.raises(MediaMismatchError, match="describes 24 patches, not 20"):
        blocks_of(family, [START, *[IMAGE] * 6], inputs)


def test_text_models_have_no_media() -> None:
    assert media_family({"model_type": "qwen3"}) is None


def test_tokens_of_a_second_of_audio() -> None:
    assert [audio_tokens(frames, 50) for frames in (1, 8, 9, 99, 100, 101, 250)] == [1, 1, 2, 13, 13, 14, 33]
