"""Rewards of the tests' runs, named by this file's path."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from relax_engine.types import Sample

HERE = __file__
LATE_S, LATE_DEADLINE_S = 2.0, 50.0


def spread(args: Any, sample: Sample) -> float:
    """Different within every group, a function of the response alone."""
    return (sum(sample.tokens) % 11) / 10


def even(args: Any, sample: Sample) -> float:
    """The share of even token ids in the response: a policy learns it from its last layer alone."""
    response = sample.tokens[len(sample.tokens) - sample.response_length :]
    return sum(token % 2 == 0 for token in response) / max(1, len(response))


def one(args: Any, sample: Sample) -> float:
    """The same for every response, so that the return of every token is known."""
    return 1.0


def raises_on_seven(args: Any, sample: Sample) -> float:
    if sample.index == 7:
        raise KeyError("no such answer")
    return 0.5


def never_returns_on_five(args: Any, sample: Sample) -> float:
    while sample.index == 5:
        time.sleep(0.1)
    return 0.5


async def spread_with_a_late_group(args: Any, sample: Sample) -> float:
    """`spread`; for the fourth group of the run only when two steps are trained, and a while later."""
    if sample.group_index == 3:
        async with asyncio.timeout(LATE_DEADLINE_S):
            while _trained_steps(args) < 2:
                await asyncio.sleep(0.05)
        await asyncio.sleep(LATE_S)
    return spread(args, sample)


def _trained_steps(args: Any) -> int:
    path = Path(args.run_dir, "metrics.jsonl")
    return len(path.read_text().splitlines()) if path.exists() else 0


def half(args: Any, sample: Sample) -> float:
    """`spread` in every second group, the same for all samples of the others."""
    return spread(args, sample) if sample.group_index % 2 else 0.5
