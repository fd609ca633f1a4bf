"""Media of every form that data sets and tools bring are one form afterwards, and decode to what they were."""

from __future__ import annotations

import base64
import io
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data_prep.media import MediaReader
from relax_engine.multimodal.content import MediaError, digest_of, open_audio, open_image, read_medium

PICTURE = np.random.default_rng(0).integers(0, 255, (5, 7, 3), dtype=np.uint8)


def png(array: np.ndarray = PICTURE) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, format="PNG")
    return stream.getvalue()


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: PICTURE,
        lambda folder: Image.fromarray(PICTURE),
        lambda folder: png(),
        lambda folder: {"bytes": png(), "path": "elsewhere.png"},
        lambda folder: "a.png",
        lambda folder: str(folder / "a.png"),
        lambda folder: {"path": "a.png"},
        lambda folder: base64.b64encode(png()).decode(),
        lambda folder: "data:image/png;base64," + base64.b64encode(png()).decode(),
        lambda folder: {"image_url": {"url": "data:image/png;base64," + base64.b64encode(png()).decode()}},
    ],
)
def test_images_of_every_form_are_the_same_pixels(make: Any, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    carried = read_medium("image", make(tmp_path), MediaReader(tmp_path))
    assert (np.asarray(open_image(carried)) == PICTURE).all()
    assert json.loads(json.dumps(carried)) == carried


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("missing.png", "'missing.png' does not exist"),
        ("../secret.png", "leads out of the dataset's folder"),
        (b"nonsense", "does not decode as an image"),
        ("https://host/a.png", "pass --fetch-media"),
        (7, "neither bytes, a path, a URL nor base64"),
    ],
)
def test_unusable_images_say_why(value: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(MediaError, match=told):
        read_medium("image", value, MediaReader(tmp_path))


def test_videos_are_frames(tmp_path: Path) -> None:
    reader = MediaReader(tmp_path)
    frames = [np.full((4, 4, 3), 60 * i, np.uint8) for i in range(4)]
    video = read_medium("video", {"frames": frames, "fps": 5}, reader)
    assert video["fps"] == 5.0
    assert [int(np.asarray(open_image(frame))[0, 0, 0]) for frame in video["frames"]] == [0, 60, 120, 180]
    Image.fromarray(frames[0]).save(
        tmp_path / "v.gif", save_all=True, append_images=[Image.fromarray(f) for f in frames[1:]], duration=250
    )
    moving = read_medium("video", "v.gif", reader)
    assert (len(moving["frames"]), moving["fps"]) == (4, 4.0)
    with pytest.raises(MediaError, match="it has no frames"):
        read_medium("video", [], reader)


def wav(raw: bytes, width: int, channels: int = 1, rate: int = 8000) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(width)
        sound.setframerate(rate)
        sound.writeframes(raw)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (wav(np.array([0, 16384, -32768], "<i2").tobytes(), 2), [0.0, 0.5, -1.0]),
        (wav(np.array([128, 192, 0], np.uint8).tobytes(), 1), [0.0, 0.5, -1.0]),
        (wav(bytes([0, 0, 0, 0, 0, 64, 0, 0, 128]), 3), [0.0, 0.5, -1.0]),
        (wav(np.array([0, 2**30, -(2**31)], "<i4").tobytes(), 4), [0.0, 0.5, -1.0]),
        (wav(np.array([[0, 16384], [16384, 16384]], "<i2").tobytes(), 2, channels=2), [0.25, 0.5]),
    ],
)
def test_wav_files_of_every_width(content: bytes, expected: list[float]) -> None:
    carried = read_medium("audio", content, MediaReader(None))
    assert open_audio(carried, 8000).tolist() == expected


def test_waveforms_are_resampled() -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(8000) / 8000).astype(np.float32)
    carried = read_medium("audio", {"array": tone, "sampling_rate": 8000}, MediaReader(None))
    heard = open_audio(carried, 16000)
    assert len(heard) == 16000
    middle = np.abs(heard - np.sin(2 * np.pi * 440 * np.arange(16000) / 16000))[500:-500]
    assert middle.max() < 0.01
    with pytest.raises(MediaError, match="no WAV file"):
        read_medium("audio", b"ID3 and so on", MediaReader(None))


def test_digests_name_content() -> None:
    one = read_medium("image", PICTURE, MediaReader(None))
    other = read_medium("image", PICTURE[::-1].copy(), MediaReader(None))
    assert digest_of({"image": [one]}) == digest_of({"image": [read_medium("image", PICTURE, MediaReader(None))]})
    assert len({digest_of({"image": items}) for items in ([one], [other], [one, other], [other, one])}) == 4
