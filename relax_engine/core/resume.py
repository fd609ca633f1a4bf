"""Where a run starts: a checkpoint to continue from, or the beginning."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.components.actor import RUN_STATE
from relax_engine.config import RunConfig


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """`iteration` steps are done; `directory` holds them, None at the beginning."""

    iteration: int = 0
    directory: str | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    weights_only: bool = False


def find_resume_point(config: RunConfig) -> ResumePoint:
    """The newest complete checkpoint under `--load`, if there is one."""
    flat = config.flat
    start = flat.start_rollout_id
    if flat.load is None or not Path(flat.load).is_dir():
        return ResumePoint(start or 0)
    latest = CheckpointManager(flat.load).latest()
    if latest is None:
        return ResumePoint(start or 0)
    path = latest.path / RUN_STATE
    if flat.only_load_weight or not path.is_file():
        # Weights alone (an imported model, or asked for): training starts anew from them.
        return ResumePoint(start or 0, str(latest.path), weights_only=True)
    state = json.loads(path.read_text())
    return ResumePoint(latest.iteration if start is None else start, str(latest.path), state)
