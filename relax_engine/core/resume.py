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


def find_resume_point(config: RunConfig) -> ResumePoint:
    """The newest complete checkpoint under `--load`, if there is one."""
    flat = config.flat
    start = flat.start_rollout_id
    if flat.load is None or not Path(flat.load).is_dir():
        return ResumePoint(start or 0)
    latest = CheckpointManager(flat.load).latest()
    if latest is None:
        return ResumePoint(start or 0)
    state = json.loads((latest.path / RUN_STATE).read_text())
    if flat.only_load_weight:
        state = {}
    return ResumePoint(latest.iteration if start is None else start, str(latest.path), state)
