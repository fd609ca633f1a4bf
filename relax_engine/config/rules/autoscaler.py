"""Rules about the autoscaler."""

from __future__ import annotations

from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig
from relax_engine.errors import ConfigError


@rule
def autoscaler_file_is_right(config: RunConfig, report: Reporter) -> Findings:
    """Names, types and bounds of what the file says."""
    path = config.elastic.autoscaler_config
    if path is None:
        return
    from relax_engine.elastic.autoscaler.config import read_autoscaler_config

    try:
        read_autoscaler_config(path)
    except ConfigError as error:
        yield report.error("autoscaler_config", str(error), "correct the file")
