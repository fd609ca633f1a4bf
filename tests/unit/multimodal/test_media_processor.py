"""Tokens and tensors of prompts with media, beside transformers' own processors where these run without torchvision."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from data_prep.media import MediaReader
from examples.tiny_media import PATCH, Family, make_model
from relax_engine.multimodal.content import MediaError, open_audio, open_image, read_medium
from relax_engine.multimodal.encoder import MediaEncoder, ProcessorSpec
from relax_engine.multimodal.media import MediaMismatchError
from relax_engine.multimodal.processor import MediaBudget, MediaProcessor

BUDGET = MediaBudget(image_tokens=(1, 24), video_tokens=(1, 6), video_frames=(2, 4))
READER = MediaReader(None)


def picture(height: int, width: int, seed: int = 0) -> Any:
    return read_medium(
        "image", np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8), READER
    )


@pytest.fixture(scope="module")
def processors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MediaProcessor]:
    folder = tmp_path_factory.mktemp("models")
    return {name: MediaProcessor(make_model(folder / name, name), BUDGET) for name in get_args(Family)}


@pytest.mark.parametrize("name", get_args(Family))
def test_images_have_a_token_for_each_square_of_patches(processors: dict[str, MediaProcessor], name: str) -> None:
    processor = processors[name]
    images = [picture(32, 48), picture(16, 80, 1), picture(400, 400, 2)]
    text = "a".join(processor.marker("image") for _ in images)
    encoded = processor.encode(text, {"image": images})
    grids = encoded.train_inputs["image_grid_thw"]
    # 32 x 48 and 16 x 80 pixels fit as they are; 400 x 400 is brought to 24 tokens at most: 4 x 4 of 16 pixels.
    assert grids.tolist() == [[1, 4, 6], [1, 2, 10], [1, 8, 8]]
    pad = processor.family.placeholders["image"]
    runs = "".join("x" if token == pad else " " for token in encoded.tokens).split()
    assert [len(run) for run in runs] == [6, 5, 16]
    assert encoded.train_inputs["pixel_values"].shape == (24 + 20 + 64, 3 * 2 * PATCH * PATCH)


def test_pixels_are_those_of_transformers(processors: dict[str, MediaProcessor]) -> None:
    """The image processor by itself, and the normalisation of a patch by hand."""
    processor = processors["qwen2_5_vl"]
    image = picture(32, 48)
    pixels = processor.features({"image": [image]}).train_inputs["pixel_values"]
    mean, std = np.array([0.48145466, 0.4578275, 0.40821073]), np.array([0.26862954, 0.26130258, 0.27577711])
    first = (np.asarray(open_image(image))[:PATCH, :PATCH] / 255.0 - mean) / std
    expected = np.repeat(first.transpose(2, 0, 1)[:, None], 2, axis=1)
    np.testing.assert_allclose(pixels[0], expected.reshape(-1), atol=1e-5)


@pytest.mark.parametrize("name", get_args(Family))
def test_videos_are_pairs_of_frames(processors: dict[str, MediaProcessor], name: str) -> None:
    processor = processors[name]
    frames = [picture(16, 32, seed) for seed in range(3)]
    video = {"frames": frames, "fps": 2.0}
    features = processor.features({"video": [video]})
    inputs = features.train_inputs
    assert inputs["video_grid_thw"].tolist() == [[2, 2, 4]]
    assert inputs["second_per_grid_ts"].tolist() == [1.0]
    stills = processor.features({"image": frames}).train_inputs["pixel_values"].reshape(3, 8, 3, 2, -1)[:, :, :, 0]
    found = inputs["pixel_values_videos"].reshape(2, 8, 3, 2, -1)
    np.testing.assert_array_equal(found[0], np.stack([stills[0], stills[1]], axis=2))
    np.testing.assert_array_equal(found[1], np.stack([stills[2], stills[2]], axis=2))  # the last frame fills the pair
    shown = processor.tokenizer.decode(processor.encode(f"[{processor.marker('video')}]", {"video": [video]}).tokens)
    frame = "<|vision_start|>" + "<|video_pad|>" * 2 + "<|vision_end|>"
    whole = "<|vision_start|>" + "<|video_pad|>" * 4 + "<|vision_end|>"
    assert shown == (f"[<0.2 seconds>{frame}<1.0 seconds>{frame}]" if name.startswith("qwen3_vl") else f"[{whole}]")


def test_long_videos_are_thinned(processors: dict[str, MediaProcessor]) -> None:
    frames = [picture(16, 16, seed) for seed in range(40)]
    inputs = processors["qwen2_5_vl"].features({"video": [{"frames": frames, "fps": 10.0}]}).train_inputs
    assert inputs["video_grid_thw"].tolist() == [[2, 2, 2]]  # 4 s at 2 frames/s would be 8, 4 are the most
    assert inputs["second_per_grid_ts"].tolist() == [2.0]


def test_audio_beside_transformers(processors: dict[str, MediaProcessor], tmp_path: Path) -> None:
    processor = processors["qwen3_omni"]
    clips = [
        read_medium("audio", (np.sin(np.arange(n) / 9).astype(np.float32), 16000), READER) for n in (4000, 16000, 52000)
    ]
    text = "a".join(processor.marker("audio") for _ in clips)
    encoded = processor.encode(text, {"audio": clips})
    from transformers import WhisperFeatureExtractor
    from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths

    extractor = WhisperFeatureExtractor.from_pretrained(processor.directory)
    for row, clip in enumerate(clips):
        alone = extractor([open_audio(clip, 16000)], sampling_rate=16000, truncation=False, padding=True,
                          return_attention_mask=True, return_tensors="np")  # fmt: skip
        frames = int(alone["attention_mask"].sum())
        assert encoded.train_inputs["feature_attention_mask"][row].sum() == frames
        spectrum = encoded.train_inputs["input_features"][row][:, : frames - 2]
        np.testing.assert_allclose(spectrum, alone["input_features"][0][:, : frames - 2], atol=1e-4)
    counts = [int(_get_feat_extract_output_lengths(m)) for m in encoded.train_inputs["feature_attention_mask"].sum(1)]
    pad = processor.family.placeholders["audio"]
    assert [len(r) for r in "".join("x" if t == pad else " " for t in encoded.tokens).split()] == counts


def test_expanded_prompts_stay_as_they_are_and_samples_of_the_model_are_text(
    processors: dict[str, MediaProcessor],
) -> None:
    processor = processors["qwen2_5_vl"]
    images = [picture(32, 48), picture(16, 80, 1)]
    features = processor.features({"image": images})
    tokens = processor.expand(processor.tokenizer.encode(2 * processor.marker("image")), features)
    assert processor.fit(tokens, features) == tokens
    pad = processor.family.placeholders["image"]
    sampled = [*tokens, 5, pad, pad, 6]
    assert processor.fit(sampled, features) == sampled


def test_placeholders_without_media_are_an_error(processors: dict[str, MediaProcessor]) -> None:
    processor = processors["qwen2_5_vl"]
    for count, given in ((2, 1), (1, 2), (0, 1)):
        with pytest.raises(MediaMismatchError, match=f"{count} of image for {given}"):
            processor.encode(processor.marker("image") * count, {"image": [picture(16, 16)] * given})
    with pytest.raises(MediaError, match="reads image and video, no audio"):
        processor.encode("", {"audio": ["x"]})


def test_a_pool_gives_what_the_processor_gives(processors: dict[str, MediaProcessor]) -> None:
    processor = processors["qwen2_5_vl"]
    text, media = processor.marker("image"), {"image": [picture(32, 48)]}
    expected = processor.encode(text, media)
    with MediaEncoder(ProcessorSpec(str(processor.directory), BUDGET), workers=1, deadline_s=100) as encoder:
        found = encoder.encode(text, media)
        assert found.tokens == expected.tokens
        np.testing.assert_array_equal(found.train_inputs["pixel_values"], expected.train_inputs["pixel_values"])
        with pytest.raises(MediaError, match="0 of image for 1"):
            encoder.encode("none", media)
