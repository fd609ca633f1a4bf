"""Numbers that other projects' own functions gave, and helpers to feed them to ours.

`peer_cases*.json` have one case per line: `id`, `peer`, `fn` (the function that was run), `inputs` and
`expected`. Sources: verl 0.8.0.dev (commit b178a3cd5), slime (commit 624b824a8), TRL 1.16.0.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

Case = dict[str, Any]


@cache
def _all_cases() -> tuple[Case, ...]:
    files = sorted(Path(__file__).parent.glob("peer_cases*.json"))
    return tuple(json.loads(line) for file in files for line in file.read_text().splitlines())


def cases(peer: str, algo: str) -> pytest.MarkDecorator:
    """Parametrize `case` over the peer's cases of one kind."""
    chosen = [case for case in _all_cases() if case["peer"] == peer and case["algo"] == algo]
    assert chosen, f"no case of {peer} for {algo}"
    return pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])


def padded(rows: list[list[float]]) -> Tensor:
    """f32 `[B, T]`; ragged rows are filled with 0."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows])


def flat(rows: list[list[float]]) -> Tensor:
    """f32 `[R]`, ragged rows one after another."""
    return torch.tensor([value for row in rows for value in row])


def padded_offsets(batch: Tensor) -> Tensor:
    """Row boundaries of `batch.reshape(-1)`: every padded position is a response token, masked or not."""
    rows, width = batch.shape
    return torch.arange(0, rows * width + 1, width)


def assert_close(actual: Tensor | float, expected: Any, tolerance: float = 1e-6) -> None:
    """Absolute and relative 1e-6, the precision of fp32 peers."""
    torch.testing.assert_close(torch.as_tensor(actual), torch.as_tensor(expected), rtol=tolerance, atol=tolerance)
