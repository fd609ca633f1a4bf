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
