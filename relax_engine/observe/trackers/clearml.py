"""ClearML: on the server whose credentials are configured, else an offline session in `clearml` in the run directory.

`clearml-task --import-offline-session` (or `Task.import_offline_session`) sends an offline session to a server later.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax_engine.observe.trackers.tracker import require

_SETTINGS = {
    # Reporting from a forked copy of this process, which holds Ray's threads and sockets, is ClearML's default.
    "report_use_subprocess": False,
    "store_uncommitted_code_diff": False,
}


class ClearML:
    """One scalar a metric: what stands before its first `/` is the plot's title, the rest its series.

    A step that is done again has two values, the later one is valid. Values that are no finite numbers are left out,
    because ClearML would make 0 of them. Neither code nor the command line is captured.
    """

    def __init__(self, run_dir: Path, project: str, name: str | None, config: Mapping[str, Any]) -> None:
        task_class = require("clearml", "use-clearml").Task
        require("clearml.config", "use-clearml").config_obj.set_overrides({"sdk": {"development": _SETTINGS}})
        if not _online():
            os.environ["CLEARML_CACHE_DIR"] = str(run_dir / "clearml")
            task_class.set_offline(True)
        self._task = task_class.init(
            project_name=project,
            task_name=name or run_dir.name,
            reuse_last_task_id=False,
            auto_connect_arg_parser=False,
            auto_connect_frameworks=False,
            auto_connect_streams=False,
            auto_resource_monitoring=False,
        )
        self._task.set_parameters_as_dict({section: values or {} for section, values in config.items()})
        self._logger = self._task.get_logger()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if math.isfinite(value):
                title, _, series = name.partition("/")
                self._logger.report_scalar(title, series or title, value=value, iteration=step)

    def rewind(self, step: int) -> None:
        """Values that were sent cannot be taken back."""

    def close(self) -> None:
        self._task.flush(wait_for_uploads=True)
        self._task.close()


def _online() -> bool:
    """Whether there is a server to send to: ClearML's own settings say so, or credentials are there."""
    mode = os.environ.get("CLEARML_OFFLINE_MODE")
    if mode is not None:
        return mode.strip().lower() in ("", "0", "false", "no")
    if os.environ.get("CLEARML_API_ACCESS_KEY"):
        return True
    return Path(os.environ.get("CLEARML_CONFIG_FILE", "~/clearml.conf")).expanduser().is_file()
