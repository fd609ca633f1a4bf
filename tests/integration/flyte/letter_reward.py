"""A reward that a few steps raise: the response begins with a letter of the half of the alphabet in the label."""

from typing import Any

HALVES = {"first": "abcdefghijklm", "second": "nopqrstuvwxyz"}


async def reward_func(args: Any, sample: Any) -> float:
    return float(sample.response[:1] in HALVES[sample.label] and bool(sample.response))
