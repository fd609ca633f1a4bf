"""The autoscaler of a run: what Serve is to run beside the roles."""

from __future__ import annotations

from ray import serve

from relax_engine.access.policy import installed
from relax_engine.config.flat import FlatView
from relax_engine.core.address import api_address
from relax_engine.elastic.autoscaler.config import read_autoscaler_config
from relax_engine.elastic.autoscaler.service import AutoscalerContext, autoscaler_target


def autoscaler_targets(args: FlatView) -> list[serve.RunTarget]:
    """The deployment that `--autoscaler-config` asks for; none without it. Serve must run.

    Raises:
        ConfigError: the file is wrong.
    """
    if args.autoscaler_config is None:
        return []
    address = api_address()
    config = read_autoscaler_config(args.autoscaler_config)
    context = AutoscalerContext(config, installed(), address.base_url, address.certificate)
    return [autoscaler_target(context)]
