"""The reward that a verl recipe has when its script names none.

What lives here: where it is in a checkout of verl. What does not: rewriting it (`relax_engine.migrate.code`).
"""

from __future__ import annotations

from pathlib import Path

_DEFAULT = ("verl", "utils", "reward_score", "__init__.py")


def built_in_reward(root: Path) -> str | None:
    """verl's own dispatch over data sources as `file.py:name`, if `root` is a checkout of verl."""
    file = root.joinpath(*_DEFAULT)
    return f"{file}:default_compute_score" if file.is_file() else None
