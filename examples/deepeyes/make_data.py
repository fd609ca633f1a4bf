"""Draw the pictures: things of gymnasium's games in nine places on the ice, and what the warm start learns from.

The model sees a whole picture as four tokens of a third of its size; zoomed into one of the places it sees the thing
there as large as it was drawn. Three sets: `train.parquet`, `heldout.parquet` and `sft.parquet`, the last with two rows
for each picture: to zoom into the place that is asked for or, as often, to answer at once; and to say what was seen.
"""

from __future__ import annotations

import io
import json
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np

from examples.deepeyes.env_deepeyes import zoom

TILE, THING = 32, 20
"""Pixels along a side of a place, and of what stands on it."""
THINGS = {
    "taxi": "taxi/taxi_h.png",
    "hole": "tile_hole.png",
    "card": "blackjack/card_back.png",
    "knight": "agent.png",
}
"""Files in the folder of pictures of `gymnasium.envs.toy_text`."""
PLACES = {
    f"{row} {column}": [333 * x + (x == 2), 333 * y + (y == 2), 333 * (x + 1) + (x >= 1), 333 * (y + 1) + (y >= 1)]
    for y, row in enumerate(("top", "middle", "bottom"))
    for x, column in enumerate(("left", "centre", "right"))
}
"""The box of each place, from 0 to 1000 along each side."""
ASK = "What is at the "
CALL, CALLED = '<tool_call>{"name": "image_zoom_in_tool", "arguments": {"bbox_2d": ', "}}</tool_call>"
ANSWER, ANSWERED = "<answer>", "</answer>"
PIECES = (ASK, *(f"{place}?" for place in PLACES), CALL, *map(str, PLACES.values()), CALLED, ANSWER, *THINGS, ANSWERED)
"""The model has a token for each: what it has to learn is where to look, and what is there."""
TRAIN_ROWS, HELDOUT_ROWS, SFT_ROWS = 2048, 256, 8192


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
    for number, (split, rows) in enumerate((("heldout", HELDOUT_ROWS), ("train", TRAIN_ROWS), ("sft", SFT_ROWS // 2))):
        random = np.random.default_rng([seed, number])
        table = [row for _ in range(rows) for row in _rows(random, taught=split == "sft")]
        paths[split] = directory / f"{split}.parquet"
        pq.write_table(pa.Table.from_pylist(table), paths[split])
    return paths


def _rows(random: np.random.Generator, *, taught: bool) -> list[dict[str, Any]]:
    """A question, or two ways to act on it: at first sight, and after a look."""
    things = [list(THINGS)[number] for number in random.integers(len(THINGS), size=len(PLACES))]
    asked = int(random.integers(len(PLACES)))
    place, thing = list(PLACES)[asked], things[asked]
    picture = draw(random, things)
    question = {"role": "user", "content": f"<image>{ASK}{place}?"}
    if not taught:
        return [_row([question], thing, [picture])]
    call = f"{CALL}{PLACES[place]}{CALLED}"
    called = [question, {"role": "assistant", "content": call}, {"role": "user", "content": "<image>"}]
    answer, near = f"{ANSWER}{thing}{ANSWERED}", zoom(picture, PLACES[place])
    first = call if random.random() < 0.5 else answer
    return [_row([question], first, [picture]), _row(called, answer, [picture, near])]


def draw(random: np.random.Generator, things: list[str]) -> Any:
    """A PIL image with the nine `things`, row by row, each somewhere on its place."""
    from PIL import Image

    picture = Image.new("RGB", (3 * TILE, 3 * TILE))
    for number, thing in enumerate(things):
        top, left = (TILE * side for side in divmod(number, 3))
        picture.paste(_sprite("tile_ice.png", TILE), (left, top))
        x, y = (int(place) for place in random.integers(0, TILE - THING + 1, 2))
        sprite = _sprite(THINGS[thing], THING)
        picture.paste(sprite, (left + x, top + y), sprite)
    return picture


@cache
def _sprite(name: str, side: int) -> Any:
    from PIL import Image

    folder = Path(str(distribution("gymnasium").locate_file("gymnasium/envs/toy_text/img")))
    with Image.open(folder / name) as file:
        return file.convert("RGBA").resize((side, side))


def _row(messages: list[dict[str, str]], label: str, pictures: list[Any]) -> dict[str, Any]:
    images = [{"bytes": _png(picture)} for picture in pictures]
    return {"prompt": messages, "label": label, "metadata": json.dumps({}), "images": images}


def _png(picture: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, format="PNG", compress_level=1)
    return stream.getvalue()
