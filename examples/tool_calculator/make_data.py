"""Write the prompts (`37*8?`) and what the supervised warm start learns from: calls, and what to say of their results.

Three sets without a common question: `train.parquet`, `heldout.parquet` and `sft.parquet`, the last with two rows for
each question.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from examples.tool_calculator.env_tool_calculator import calculate

OPEN, CLOSE = '<tool_call>{"name": "calculator", "arguments": {"expression": "', '"}}</tool_call>'
PIECES = (OPEN, CLOSE)
"""The model has a token for each: what it has to learn is which expression belongs between them, and when."""
TRAIN_ROWS, HELDOUT_ROWS, SFT_ROWS = 4096, 256, 4096


def make_data(directory: str | Path, *, seed: int = 0) -> dict[str, Path]:
    """Write the three files; the same seed gives the same rows.

    Returns:
        The path of each split.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    questions = [f"{a}{op}{b}" for a in range(10, 100) for op in "+-*" for b in range(10, 100)]
    random.Random(seed).shuffle(questions)
    paths = {}
    for split, rows in (("heldout", HELDOUT_ROWS), ("train", TRAIN_ROWS), ("sft", SFT_ROWS // 2)):
        chosen, questions = questions[:rows], questions[rows:]
        table = [row for question in chosen for row in (_taught(question) if split == "sft" else [_asked(question)])]
        paths[split] = directory / f"{split}.parquet"
        pq.write_table(pa.Table.from_pylist(table), paths[split])
    return paths


def _asked(question: str) -> dict[str, Any]:
    return _row([{"role": "user", "content": f"{question}?"}], calculate(question))


def _taught(question: str) -> list[dict[str, Any]]:
    """To call, and to say what came of it."""
    asked = {"role": "user", "content": f"{question}?"}
    call, value = f"{OPEN}{question}{CLOSE}", calculate(question)
    answered = [asked, {"role": "assistant", "content": call}, {"role": "tool", "content": value}]
    return [_row([asked], call), _row(answered, value)]


def _row(messages: list[dict[str, str]], label: str) -> dict[str, Any]:
    return {"prompt": messages, "label": label, "metadata": json.dumps({})}
