"""Weights & Biases: online where a key is configured, else into `wandb` in the run directory, for `wandb sync`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax_engine.observe.trackers.tracker import require


class WeightsAndBiases:
    """One history row a step, over the metric `step`; one that is done again has two rows, the later one is valid.

    `$WANDB_MODE` decides whether anything is sent; without it, `$WANDB_API_KEY` does.
    """

    def __init__(self, run_dir: Path, project: str, name: str | None, config: Mapping[str, Any]) -> None:
        wandb = require("wandb", "use-wandb")
        mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        self._run = wandb.init(
            project=project,
            name=name,
            dir=str(run_dir),
            config=dict(config),
            mode=mode,
            settings=wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def rewind(self, step: int) -> None:
        """Rows that were sent cannot be taken back."""

    def close(self) -> None:
        self._run.finish()
