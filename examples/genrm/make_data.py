"""Write what the policy is asked (`reverse 49381`), what its warm start learns from, and what the judge learns from.

Four sets: `train.parquet`, `heldout.parquet`, `sft.parquet` and `judge.parquet`. No number that the policy is asked in
`heldout` is in another. What lives here: rows. What does not: how a judge is asked and read (`relax_engine.rewards`).
"""

from __future__ import annotations

import json
import random
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from relax_engine.rewards.judge import grade_prompt
from relax_engine.types import Sample

DIGITS = 5
ROWS = {"heldout": 256, "train": 4096, "sft": 8192, "judge": 16384}
YES, NO = "\nJudgement: Yes", "\nJudgement: No"
OPEN, CLOSE = "<answer>", "</answer>"
PIECES = ("reverse ", "\nright: ", "\ngiven: ", OPEN, CLOSE, YES, NO)
"""Texts that are tokens of both models."""
UNCLOSED = 0.5
"""Share of the answers in the warm start that lack the closing tag: what the reward for the format is there for."""


def make_data(directory: str | Path, *, seed: int = 0) -> dict[str, Path]:
    """Write the four files; the same seed gives the same rows.

    Returns:
        The path of each split.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    template = yaml.safe_load(Path(__file__).with_name("rewards.yaml").read_text())["reward_terms"]["judge"]["template"]
    numbers = iter(rng.sample(range(10**DIGITS), sum(ROWS.values())))
    paths = {}
    for split, rows in ROWS.items():
        asked = [f"{next(numbers):0{DIGITS}}" for _ in range(rows)]
        if split == "judge":
            table = [_judged(number, template, rng) for number in asked]
        elif split == "sft":
            table = [_row(_question(number), _tagged(number[::-1], rng)) for number in asked]
        else:
            table = [_row(_question(number), number[::-1]) for number in asked]
        paths[split] = directory / f"{split}.parquet"
        pq.write_table(pa.Table.from_pylist(table), paths[split])
    return paths


def judgement(label: str, answer: str) -> str:
    """How the judge thinks and ends: characters side by side, whether they are the same, and its verdict.

    >>> judgement("183", "193")
    '11=89!33=\\nJudgement: No'
    """
    pairs = [
        f"{right}{given}{'=' if right == given else '!'}" for right, given in zip_longest(label, answer, fillvalue="-")
    ]
    return "".join(pairs) + (YES if label == answer else NO)


def _judged(number: str, template: str, rng: random.Random) -> dict[str, Any]:
    answer = number[::-1] if rng.random() < 0.35 else _mistaken(number[::-1], rng)
    sample = Sample(prompt=_question(number), response=_tagged(answer, rng), label=number[::-1])
    return _row(grade_prompt(sample, template), judgement(number[::-1], answer))


def _mistaken(answer: str, rng: random.Random) -> str:
    """Digits of one's own from some place on; now and then one too few or too many, or two neighbours exchanged."""
    at = rng.randrange(len(answer) - 1)
    if rng.random() < 0.1:
        return answer[:at] + answer[at + 1] + answer[at] + answer[at + 2 :]
    length = len(answer) + rng.choices((-1, 0, 1), (1, 8, 1))[0]
    return answer[:at] + "".join(rng.choices("0123456789", k=length - at))


def _tagged(answer: str, rng: random.Random) -> str:
    return f"{OPEN}{answer}" if rng.random() < UNCLOSED else f"{OPEN}{answer}{CLOSE}"


def _question(number: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"reverse {number}"}]


def _row(prompt: list[dict[str, str]], label: str) -> dict[str, Any]:
    return {"prompt": prompt, "label": label, "metadata": json.dumps({})}
