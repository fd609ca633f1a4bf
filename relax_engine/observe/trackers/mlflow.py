"""MLflow tracking: on the server that `$MLFLOW_TRACKING_URI` names, else in `mlruns` in the run directory."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax_engine.observe.trackers.tracker import require

_PARAMETERS = 100  # MLflow's limit for one batch


def mlflow_client(default: Path) -> Any:
    """MLflow's client for `$MLFLOW_TRACKING_URI`, or for files in `default`; nothing is sent anywhere then.

    Raises:
        ConfigError: the package is not installed.
    """
    # MLflow asks for consent to its store in plain files, and reports usage unless told not to.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    uri = os.environ.get("MLFLOW_TRACKING_URI") or default.absolute().as_uri()
    return require("mlflow", "use-mlflow").MlflowClient(tracking_uri=uri, registry_uri=uri)


class MLflow:
    """One metric a number of the log; one that is done again has two values at its step, the later one is valid."""

    def __init__(self, run_dir: Path, experiment: str, name: str | None, config: Mapping[str, Any]) -> None:
        self._client = mlflow_client(run_dir / "mlruns")
        known = self._client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else self._client.create_experiment(experiment)
        self._run: str = self._client.create_run(number, run_name=name).info.run_id
        entities = require("mlflow.entities", "use-mlflow")
        self._metric = entities.Metric
        parameters = [entities.Param(key, str(value)[:6000]) for key, value in _flat(config).items()]
        for start in range(0, len(parameters), _PARAMETERS):
            self._client.log_batch(self._run, params=parameters[start : start + _PARAMETERS])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[self._metric(name, v, now, step) for name, v in values.items()])

    def rewind(self, step: int) -> None:
        """Values that were logged cannot be taken back."""

    def close(self) -> None:
        self._client.set_terminated(self._run)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}": value}
    return flat
