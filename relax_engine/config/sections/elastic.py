"""Engines that come and go during a run."""

from __future__ import annotations

from typing import Literal

from relax_engine.config.sections.base import Section, flag


class Elastic(Section):
    """Deadlines of scale requests (`POST /rollout/scale_out`, `/rollout/scale_in`), and what they promise."""

    scale_out_timeout: float = flag(300.0, gt=0, le=86400, unit="seconds")
    """Longest scale-out request from its acceptance to engines that serve, unless the request names another time."""

    scale_out_partial_success_policy: Literal["rollback_all", "keep_partial"] = "rollback_all"
    """When only some of the engines of a request can join: take all of them away again, or keep those."""

    scale_weight_sync_precheck: bool = True
    """Have a new engine generate a token, and compare what an external one serves with an engine of the run, before
    weights are sent to it."""

    scale_in_drain_timeout: float = flag(30.0, ge=0, le=86400, unit="seconds")
    """Longest wait for the last requests of an engine that leaves; what remains then goes on at other engines."""

    scale_in_shutdown_timeout: float = flag(30.0, gt=0, le=86400, unit="seconds")
    """Longest wait for the end of the process of an engine that has left, before it is killed."""

    autoscaler_config: str | None = None
    """YAML file of the thresholds at which engines are added and removed while the run goes on (docs/autoscaler.md).
    Default: nobody does so but callers of the scaling API."""
