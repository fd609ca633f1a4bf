"""Rewards of slime and Relax that are made of ours.

What lives here: their text. What does not: writing it beside a recipe (`relax_engine.migrate.migrate`).
"""

from __future__ import annotations

DEEPSCALER = '''"""The reward that slime and Relax call deepscaler: `math` on what follows the thoughts."""

import dataclasses

from relax_engine.rewards.math import math_reward


def reward_func(args, sample, **kwargs):
    """1 if the box after the last </think> (or after ###Response) equals the label; 0 without such a mark."""
    for mark in ("</think>", "###Response"):
        _, found, answer = sample.response.rpartition(mark)
        if found:
            return math_reward(args, dataclasses.replace(sample, response=answer))
    return 0.0
'''
"""`--rm-type deepscaler`."""
