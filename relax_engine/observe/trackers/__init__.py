"""Experiment trackers: where a run's metrics go beside `metrics.jsonl`.

Each tracker is a file here, with the package it needs imported when it is opened (`pip install .[trackers]`).
They are shown the configuration without credentials.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relax_engine.config import RunConfig
from relax_engine.observe.trackers.tracker import Tracker
from relax_engine.utils.redact import redact_value


def open_trackers(config: RunConfig, run_dir: Path) -> list[Tracker]:
    """The trackers that the flags ask for.

    Raises:
        ConfigError: the package of one is not installed.
    """
    flat = config.flat
    project, name = flat.tb_project_name or "relax", flat.tb_experiment_name
    shown: dict[str, Any] = redact_value(config.to_dict())
    trackers: list[Tracker] = []
    if flat.use_tensorboard:
        from relax_engine.observe.trackers.tensorboard import TensorBoard

        trackers.append(TensorBoard(run_dir / "tensorboard"))
    if flat.use_wandb:
        from relax_engine.observe.trackers.wandb import WeightsAndBiases

        trackers.append(WeightsAndBiases(run_dir, project, name, shown))
    if flat.use_mlflow:
        from relax_engine.observe.trackers.mlflow import MLflow

        trackers.append(MLflow(run_dir, project, name, shown))
    if flat.use_clearml:
        from relax_engine.observe.trackers.clearml import ClearML

        trackers.append(ClearML(run_dir, project, name, shown))
    if flat.otlp_endpoint is not None:
        from relax_engine.observe.trackers.traces import Traces

        trackers.append(Traces(flat.otlp_endpoint, run_dir))
    return trackers
