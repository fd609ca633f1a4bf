"""Synthesise what there is to see and hear: tones, lamps, and lamps that change, with a question about each.

Three kinds of rows: a sound of two or three tones, a picture of a lamp with a sound of two, and a video of a lamp that
changes its colour. Three sets: `train.parquet`, `heldout.parquet` and `sft.parquet`. Nothing is read from elsewhere.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relax_engine.multimodal.content import write_wav

RATE = 16000
"""Samples of a sound per second."""
SECONDS = 0.16
"""Of a tone."""
TONES = {"low": 250.0, "middle": 600.0, "high": 1400.0, "top": 3200.0}
"""Frequencies in Hz."""
SIDE = 32
"""Pixels along each side of a picture."""
COLOURS = {"red": (230, 40, 40), "green": (40, 200, 60), "blue": (50, 70, 230), "yellow": (235, 215, 40)}
FRAMES, FPS = 4, 2.0
HEAR, SEE, BOTH = "Which tones?", "Which colours?", "Which colour and tones?"
OPEN, CLOSE = "<answer>", "</answer>"
PIECES = (HEAR, SEE, BOTH, OPEN, *TONES, *COLOURS, CLOSE)
"""The model has a token for each: what it has to learn is to look and to listen."""
ROWS = {"heldout": 256, "train": 2048, "sft": 4096}


def make_data(directory: str | Path, *, seed: int = 0) -> dict[str, Path]:
    """Write the three files; the same seed gives the same rows.

    Returns:
        The path of each split.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    paths = {}
    for number, (split, rows) in enumerate(ROWS.items()):
        random = np.random.default_rng([seed, number])
        paths[split] = directory / f"{split}.parquet"
        pq.write_table(pa.Table.from_pylist([_row(random) for _ in range(rows)]), paths[split])
    return paths


def _row(random: np.random.Generator) -> dict[str, Any]:
    """One question of a kind that is drawn, its media, and the answer in its tags."""
    kind = (HEAR, SEE, BOTH)[random.integers(3)]
    colours = random.choice(list(COLOURS), {HEAR: 0, BOTH: 1, SEE: 2}[kind]).tolist()
    tones = random.choice(list(TONES), {HEAR: int(random.integers(2, 4)), BOTH: 2, SEE: 0}[kind]).tolist()
    marks = {HEAR: "<audio>", BOTH: "<image><audio>", SEE: "<video>"}[kind]
    return {
        "prompt": [{"role": "user", "content": f"{marks}{kind}"}],
        "label": f"{OPEN}{' '.join([*colours, *tones])}{CLOSE}",
        "metadata": json.dumps({}),
        "images": [lamp(random, colours[0])] if kind == BOTH else [],
        "videos": [video(random, colours)] if kind == SEE else [],
        "audios": [{"bytes": write_wav(sound(random, tones), RATE)}] if tones else [],
    }


def sound(random: np.random.Generator, tones: Sequence[str]) -> np.ndarray:
    """A waveform `[samples]` between -1 and 1: the tones one behind the other, about in tune, with noise."""
    time = np.arange(int(RATE * SECONDS)) / RATE
    envelope = np.minimum(1.0, np.minimum(time, SECONDS - time) / 0.01)  # 10 ms to come and to go
    parts = []
    for tone in tones:
        pitch = TONES[tone] * random.uniform(0.97, 1.03)
        parts.append(random.uniform(0.3, 0.6) * envelope * np.sin(2 * np.pi * (pitch * time + random.uniform())))
    waveform = np.concatenate(parts)
    return waveform + random.normal(0.0, 0.01, len(waveform))


def lamp(random: np.random.Generator, colour: str) -> dict[str, bytes]:
    """A lamp of that colour somewhere in the dark, as a PNG file."""
    from PIL import Image, ImageDraw

    picture = Image.fromarray(random.normal(40.0, 8.0, (SIDE, SIDE, 3)).clip(0, 255).astype(np.uint8))
    left, top = (int(place) for place in random.integers(0, SIDE // 3, 2))
    ImageDraw.Draw(picture).ellipse((left, top, left + 2 * SIDE // 3, top + 2 * SIDE // 3), fill=COLOURS[colour])
    stream = io.BytesIO()
    picture.save(stream, format="PNG", compress_level=1)
    return {"bytes": stream.getvalue()}


def video(random: np.random.Generator, colours: Sequence[str]) -> dict[str, Any]:
    """`FRAMES` pictures of a lamp that has one of the colours after the other, for the same time each."""
    frames = [lamp(random, colours[number * len(colours) // FRAMES]) for number in range(FRAMES)]
    return {"frames": frames, "fps": FPS}
