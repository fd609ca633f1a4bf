"""Write tasks (a function, a request, tests), and what the warm start learns from: edits, second tries.

    def area(q, d):
        return q - d
    area must multiply                          ->  2:    return q * d

Three sets without a common task: `train.parquet`, `heldout.parquet` and `sft.parquet`.
"""

from __future__ import annotations

import json
import operator
import random
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from examples.swe_sandbox.workspace import Test, report

OPERATIONS: Mapping[str, tuple[str, Callable[[int, int], int]]] = {
    "add": ("+", operator.add),
    "subtract": ("-", operator.sub),
    "multiply": ("*", operator.mul),
    "divide": ("//", operator.floordiv),
}
NAMES = ("area", "cost", "mean", "total")
ARGUMENTS = tuple(product(range(5, 10), range(2, 5)))
PIECES = (
    *NAMES, "def ", "    return ", " must ", "2:", *OPERATIONS, *(f" {sign} " for sign, _ in OPERATIONS.values()),
    ") is ", ", not ", "no edit",
)  # fmt: skip
"""Texts that are tokens of the model."""
ROWS = {"heldout": 96, "train": 1024, "sft": 12_288}
UNCHANGED = 0.6
"""Share of the warm start's edits that put a line where it is already: what the tests are there for."""


@dataclass(frozen=True)
class Task:
    """A file with a function that must do something else, and what shows that it does.

    Attributes:
        source: Text of the file.
        request: What the function must do.
        wanted: What its second line must be.
        tests: Of the function as it must be.
        failure: What they say of the function as it is.
    """

    source: str
    request: str
    wanted: str
    tests: tuple[Test, ...]
    failure: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """What the model is shown."""
        return [_said("user", f"{self.source}\n{self.request}")]

    @property
    def edit(self) -> str:
        """The right answer."""
        return f"2:{self.wanted}"

    @property
    def unchanged(self) -> str:
        """An answer that changes nothing."""
        return "2:" + self.source.partition("\n")[2]


def make_data(directory: str | Path, *, seed: int = 0) -> dict[str, Path]:
    """Write the three files; the same seed gives the same rows.

    Returns:
        The path of each split.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    rng, seen = random.Random(seed), set[str]()
    paths = {}
    for split, rows in ROWS.items():
        table: list[dict[str, Any]] = []
        while len(table) < rows:
            task = make_task(rng)
            if task.messages[0]["content"] not in seen:
                seen.add(task.messages[0]["content"])
                table.append(_taught(task, rng) if split == "sft" else _row(task.messages, task))
        paths[split] = directory / f"{split}.parquet"
        pq.write_table(pa.Table.from_pylist(table), paths[split])
    return paths


def make_task(rng: random.Random) -> Task:
    """A task in which the function does something else than it must."""
    name, parameters = rng.choice(NAMES), rng.sample(string.ascii_lowercase, 2)
    present, wanted = rng.sample(list(OPERATIONS), 2)
    source = f"def {name}({', '.join(parameters)}):\n{_statement(parameters, present)}"
    tests = tuple((name, pair, OPERATIONS[wanted][1](*pair)) for pair in rng.sample(ARGUMENTS, 3))
    values = [OPERATIONS[present][1](*pair) for _, pair, _ in tests]
    failing = next(number for number, value in enumerate(values) if value != tests[number][2])
    failure = report(tests[failing], str(values[failing]))
    return Task(source, f"{name} must {wanted}", _statement(parameters, wanted), tests, failure)


def _statement(parameters: list[str], word: str) -> str:
    return f"    return {parameters[0]} {OPERATIONS[word][0]} {parameters[1]}"


def _taught(task: Task, rng: random.Random) -> dict[str, Any]:
    """An edit at once, or, in every third row, after one that changed nothing."""
    failed = [_said("assistant", task.unchanged), _said("user", task.failure)] if rng.random() < 1 / 3 else []
    return _row([*task.messages, *failed], task, task.unchanged if rng.random() < UNCHANGED else task.edit)


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _row(messages: list[dict[str, str]], task: Task, label: str = "tests") -> dict[str, Any]:
    return {"prompt": messages, "label": label, "metadata": json.dumps({"source": task.source, "tests": task.tests})}
