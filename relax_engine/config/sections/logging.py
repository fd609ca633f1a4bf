"""Where metrics and logs go."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

from relax_engine.config.sections.base import Section, StrList, flag, group

_BETWEEN_URLS = re.compile(r",\s*(?=[a-z][a-z0-9+.-]*://)", re.IGNORECASE)


def _read_urls(value: Any) -> Any:
    """The URLs of comma-separated texts; a comma inside a URL (`?to=a,b`) separates nothing."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return value
    return [url.strip() for text in texts for url in _BETWEEN_URLS.split(text) if url.strip()]


NotifyUrls = Annotated[list[str], BeforeValidator(_read_urls)]


class Logging(Section):
    """Trackers and the run directory."""

    experiment_name: str = "default"
    """Name of the run. Default: `--tb-experiment-name` where given."""

    run_dir: str | None = None
    """Directory of `metrics.jsonl` and logs. Default: `--save`, else `build/runs/<experiment name>`."""

    record_rollouts: bool = True
    """Keep every sample in `rollouts` in `--run-dir`, for `relax rollouts` and `relax ui`."""

    record_media_mb: int = flag(1000, ge=0, unit="MB")
    """Images, audio and video frames of samples that `rollouts` may hold; of further ones it says where they were."""

    use_tensorboard: bool = False
    """Write TensorBoard events into `tensorboard` in `--run-dir`."""

    tb_project_name: str | None = None
    """Project (MLflow: experiment) under which a tracker files the run. Default: `relax`."""

    tb_experiment_name: str | None = None
    """Name under which a tracker files the run. Default: `--experiment-name`."""

    use_wandb: bool = False
    """Log to Weights & Biases: online with $WANDB_API_KEY or $WANDB_MODE=online, else into `wandb` in `--run-dir`."""

    use_mlflow: bool = False
    """Log to MLflow: the server at $MLFLOW_TRACKING_URI, else files in `mlruns` in `--run-dir`."""

    use_clearml: bool = False
    """Log to ClearML: online where its credentials are configured, else a session in `clearml` in `--run-dir`."""

    otlp_endpoint: str | None = None
    """Send the spans of every step to this OpenTelemetry collector (`http://collector:4318`), over HTTP with protobuf;
    headers and certificates are those of `$OTEL_EXPORTER_OTLP_...`."""

    device_peak_tflops: float | None = flag(None, gt=0, unit="10^12 operations/s")
    """What one device of the actor can do at most, for `perf/mfu/...`. Default: of known accelerators what their data
    sheets say of dense bfloat16, with `--bf16`; elsewhere there is no utilization."""

    use_metrics_service: bool = False
    """Serve the run's metrics at `/metrics` while it runs, and take metrics of one's own there."""

    notify_urls: NotifyUrls = group(list)
    """Apprise URLs, separated by commas, that are told of start, reports, end, alerts and errors of the run. With
    `freq=N` among a URL's parameters it gets every Nth report. They are credentials: nothing shows them."""

    notify_regressions: StrList = group(list)
    """Metrics of which `--notify-urls` are told when they get worse, for example `rollout/raw_reward`."""
