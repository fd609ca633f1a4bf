"""Where metrics and logs go."""

from __future__ import annotations

from relax_engine.config.sections.base import Section


class Logging(Section):
    """Trackers and the run directory."""

    experiment_name: str = "default"
    """Name of the run. Default: `--tb-experiment-name` where given."""

    run_dir: str | None = None
    """Directory of `metrics.jsonl` and logs. Default: `--save`, else `build/runs/<experiment name>`."""

    use_tensorboard: bool = False
    """Write TensorBoard events."""

    tb_project_name: str | None = None
    """Project under which trackers file the run."""

    tb_experiment_name: str | None = None
    """Name under which trackers file the run. Default: `--experiment-name`."""

    use_wandb: bool = False
    """Send metrics to Weights & Biases."""

    use_clearml: bool = False
    """Send metrics to ClearML."""

    use_metrics_service: bool = False
    """Serve the run's metrics over HTTP while it runs."""
