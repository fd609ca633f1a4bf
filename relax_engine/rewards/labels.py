"""Checking a dataset's labels against the reward that will score it, before anything is trained."""

from __future__ import annotations

import importlib

from relax_engine.rewards.registry import reward_entry


def label_problem(rm_type: str, label: str) -> str | None:
    """Why the reward `rm_type` could not score a response to a prompt with this label; None if it could.

    A reward's module says so in a function `check_label(label) -> str | None`; without one, every
    label is accepted.

    Raises:
        ValueError: unknown reward.
    """
    module = importlib.import_module(reward_entry(rm_type).reference.partition(":")[0])
    check = getattr(module, "check_label", None)
    problem: str | None = check(label) if check is not None else None
    return problem
