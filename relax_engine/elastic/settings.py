"""What the flags say about scaling, and where there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from relax_engine.config import RunConfig

PartialPolicy = Literal["rollback_all", "keep_partial"]


@dataclass(frozen=True, slots=True)
class ElasticSettings:
    """Deadlines in seconds, and what becomes of a request that succeeds in part."""

    scale_out_timeout_s: float = 300.0
    partial_policy: PartialPolicy = "rollback_all"
    precheck: bool = True
    drain_timeout_s: float = 30.0
    shutdown_timeout_s: float = 30.0
    fence_timeout_s: float = 10.0
    """How long a scale-in request may wait for a weight update before it is turned away."""

    @classmethod
    def from_config(cls, config: RunConfig) -> ElasticSettings:
        """The values in force."""
        options = config.elastic
        return cls(
            scale_out_timeout_s=options.scale_out_timeout,
            partial_policy=options.scale_out_partial_success_policy,
            precheck=options.scale_weight_sync_precheck,
            drain_timeout_s=options.scale_in_drain_timeout,
            shutdown_timeout_s=options.scale_in_shutdown_timeout,
        )


def refusal(config: RunConfig) -> str | None:
    """Why this run's engines cannot become more or fewer; None where they can."""
    flat = config.flat
    if config.mode == "colocate":
        return "in colocate mode engines share the actor's devices, as many as these are; use --fully-async or --hybrid"
    if flat.rollout_function_path is not None:
        return "the function of --rollout-function-path addresses engines itself, and is not told when they change"
    if flat.debug_train_only or flat.load_debug_rollout_data is not None:
        return "this run has no engines that generate"
    if flat.debug_rollout_only:
        return "there is no actor that could send a new engine its weights (--debug-rollout-only)"
    return None
