"""Rules about the weight transfer."""

from __future__ import annotations

from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig


@rule
def object_store_has_a_url(config: RunConfig, report: Reporter) -> Findings:
    """Weights that travel as files need a place, and only they do."""
    options = config.weight_sync
    stored = options.weight_sync_transport == "object_store"
    if stored and options.weight_sync_url is None:
        yield report.error(
            "weight_sync_transport weight_sync_url",
            "there is no place to keep the weights in",
            "--weight-sync-url s3://bucket/run, or a directory that all engines see",
        )
    elif options.weight_sync_url is not None and not stored:
        yield report.warning(
            "weight_sync_transport weight_sync_url",
            "without effect: this transport keeps no files",
            "add --weight-sync-transport object_store, or leave the URL out",
        )


@rule
def shared_memory_is_not_compressed(config: RunConfig, report: Reporter) -> Findings:
    """Receivers read shared memory where it lies."""
    options = config.weight_sync
    if options.weight_sync_transport == "shared_memory" and options.weight_sync_compression != "none":
        yield report.error(
            "weight_sync_transport weight_sync_compression",
            "tensors in shared memory are read as they lie there, so they cannot be compressed",
            "leave --weight-sync-compression out",
        )


@rule
def backend_is_for_broadcast(config: RunConfig, report: Reporter) -> Findings:
    """Only the broadcast has a process group."""
    options = config.weight_sync
    if options.checkpoint_engine_backend is not None and options.weight_sync_transport != "broadcast":
        yield report.note(
            "checkpoint_engine_backend weight_sync_transport", "without effect: this transport has no process group"
        )


@rule
def sglang_takes_plain_buckets(config: RunConfig, report: Reporter) -> Findings:
    """SGLang's server knows neither compressed buckets nor which weights it holds, and reads directories only."""
    options = config.weight_sync
    if config.rollout.rollout_engine != "sglang":
        return
    if options.weight_sync_compression != "none":
        yield report.error(
            "rollout_engine weight_sync_compression",
            "SGLang's server cannot read compressed weights",
            "leave --weight-sync-compression out",
        )
    stored = options.weight_sync_transport == "object_store"
    url = (options.weight_sync_url or "").removeprefix("file://")
    if stored and ("://" in url or options.weight_sync_mode == "delta"):
        yield report.error(
            "rollout_engine weight_sync_transport weight_sync_url weight_sync_mode",
            "SGLang's server loads directories that have all the weights",
            "--weight-sync-url with a directory that all engines see and --weight-sync-mode full, or another transport",
        )
    elif options.weight_sync_mode == "delta":
        yield report.warning(
            "rollout_engine weight_sync_mode",
            "SGLang's server does not tell which weights it holds, so every sync sends all of them",
            "leave --weight-sync-mode out",
        )
