"""The audio-visual example's sounds, lamps and answers belong together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from examples.omni_avqa import make_data as data
from relax_engine.multimodal.content import open_audio, open_image, read_medium
from relax_engine.rollout.prompt_media import MediaReader


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "ROWS", {"heldout": 30, "train": 30, "sft": 30})
        paths: dict[str, Path] = data.make_data(tmp_path_factory.mktemp("avqa"))
    return {split: pq.read_table(path).to_pylist() for split, path in paths.items()}


def heard(row: dict[str, Any]) -> list[str]:
    """The tones of a row's sound, by the strongest frequency of each stretch."""
    if not row["audios"]:
        return []
    waveform = open_audio(read_medium("audio", row["audios"][0], MediaReader(None)), data.RATE)
    parts = waveform.reshape(-1, int(data.RATE * data.SECONDS))
    strongest = np.abs(np.fft.rfft(parts)).argmax(axis=1) / data.SECONDS
    names, pitches = list(data.TONES), np.array(list(data.TONES.values()))
    return [names[np.abs(np.log(pitches / pitch)).argmin()] for pitch in strongest]


def seen(row: dict[str, Any]) -> list[str]:
    """The colours of a row's lamps; of a video those of the first and the last frame."""
    images = [read_medium("image", image, MediaReader(None)) for image in row["images"]]
    for video in row["videos"]:
        assert len(video["frames"]) == data.FRAMES
        images += [read_medium("image", video["frames"][end], MediaReader(None)) for end in (0, -1)]
    names, colours = list(data.COLOURS), np.array(list(data.COLOURS.values()))
    centres = [np.array(open_image(image))[data.SIDE // 2, data.SIDE // 2] for image in images]
    return [names[np.abs(colours - centre).sum(axis=1).argmin()] for centre in centres]


def test_an_answer_says_what_is_to_be_seen_and_then_what_is_to_be_heard(rows: dict[str, list[dict[str, Any]]]) -> None:
    kinds = {}
    for row in (row for table in rows.values() for row in table):
        (question,) = row["prompt"]
        assert row["label"] == f"{data.OPEN}{' '.join(seen(row) + heard(row))}{data.CLOSE}"
        kinds[question["content"]] = (len(row["images"]), len(row["videos"]), len(row["audios"]))
    assert kinds == {
        "<audio>Which tones?": (0, 0, 1),
        "<video>Which colours?": (0, 1, 0),
        "<image><audio>Which colour and tones?": (1, 0, 1),
    }


def test_no_sound_of_one_set_is_in_another(rows: dict[str, list[dict[str, Any]]]) -> None:
    sounds = {split: {row["audios"][0]["bytes"] for row in table if row["audios"]} for split, table in rows.items()}
    assert sum(map(len, sounds.values())) == len(set().union(*sounds.values())) > 40
