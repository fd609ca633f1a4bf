"""Write the prompts (`river of tolu?`) and what the warm start learns from: searches, echoes, answers from texts.

Three sets: `train.parquet` and `heldout.parquet` ask about places of the corpus, none of which is in both;
`sft.parquet` shows places that are made up for each row, so what is learnt by heart there helps with no question.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from examples.search_r1.env_search_r1 import CORPUS
from examples.search_r1.make_corpus import ATTRIBUTES, NAMES, Place, make_place

PIECES = (
    "<search>", "</search>", "<information>", "</information>", "<answer>", "</answer>",
    *(f"{name} " for name in ATTRIBUTES), "of ", ": ", ", ",
)  # fmt: skip
"""Texts that are tokens of the model: what it has to learn is which names belong between them."""
HELDOUT_PLACES, SFT_ROWS = 80, 12_288
ECHOED = 0.5
"""Share of the questions that the warm start answers with the place's own name, without a search."""


def make_data(directory: str | Path, *, seed: int = 0) -> dict[str, Path]:
    """Write the three files; the same seed gives the same rows.

    Returns:
        The path of each split.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    places = [Place.read(json.loads(line)["contents"]) for line in CORPUS.read_text().splitlines()]
    rng.shuffle(places)
    tables = {
        "heldout": [_asked(place, name) for place in places[:HELDOUT_PLACES] for name in ATTRIBUTES],
        "train": [_asked(place, name) for place in places[HELDOUT_PLACES:] for name in ATTRIBUTES],
        "sft": [_taught(rng) for _ in range(SFT_ROWS)],
    }
    paths = {}
    for split, table in tables.items():
        rng.shuffle(table)
        paths[split] = directory / f"{split}.parquet"
        pq.write_table(pa.Table.from_pylist(table), paths[split])
    return paths


def _asked(place: Place, name: str) -> dict[str, Any]:
    return _row([_question(place, name)], place.facts[name])


def _taught(rng: random.Random) -> dict[str, Any]:
    """What to do with a question, or, as often, with what a search has found."""
    place, name = make_place(rng.choice(NAMES), rng), rng.choice(ATTRIBUTES)
    question, search = _question(place, name), f"<search>{name} of {place.name}</search>"
    if rng.random() < 0.5:
        echo = f"<answer>{place.name}</answer>"
        return _row([question], echo if rng.random() < ECHOED else search)
    found = {"role": "tool", "content": f"<information>{place.contents}</information>"}
    return _row([question, {"role": "assistant", "content": search}, found], f"<answer>{place.facts[name]}</answer>")


def _question(place: Place, name: str) -> dict[str, str]:
    return {"role": "user", "content": f"{name} of {place.name}?"}


def _row(prompt: list[dict[str, str]], label: str) -> dict[str, Any]:
    return {"prompt": prompt, "label": label, "metadata": json.dumps({})}
