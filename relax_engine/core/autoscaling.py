"""The autoscaler of a run: what Serve is to run beside the roles."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.context import _get_global_client

from relax_engine.access.listener import base_url
from relax_engine.access.policy import installed
from relax_engine.config.flat import FlatView
from relax_engine.elastic.autoscaler.config import read_autoscaler_config
from relax_engine.elastic.autoscaler.service import AutoscalerContext, autoscaler_target


def autoscaler_targets(args: FlatView) -> list[serve.RunTarget]:
    """The deployment that `--autoscaler-config` asks for; none without it. Serve must run.

    Raises:
        ConfigError: the file is wrong.
    """
    if args.autoscaler_config is None:
        return []
    client: Any = _get_global_client()
    listening = client.http_config.model_dump(include={"host", "port", "ssl_certfile"}, exclude_none=True)
    if listening["host"] in ("0.0.0.0", "::"):
        listening["host"] = "127.0.0.1" if listening["host"] == "0.0.0.0" else "::1"
    config = read_autoscaler_config(args.autoscaler_config)
    context = AutoscalerContext(config, installed(), base_url(listening), listening.get("ssl_certfile"))
    return [autoscaler_target(context)]
