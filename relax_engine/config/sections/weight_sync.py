"""How new weights reach the engines."""

from __future__ import annotations

from typing import Literal

from relax_engine.config.sections.base import Section, flag


class WeightSync(Section):
    """Transport, buckets and deadlines of the weight transfer."""

    weight_sync_transport: Literal["broadcast", "shared_memory", "object_store"] = "broadcast"
    """How weights travel: torch.distributed broadcast, memory shared on one host, or files that engines pull."""

    checkpoint_engine_backend: Literal["nccl", "gloo"] | None = None
    """Process-group backend of the broadcast; by default nccl where CUDA is present, else gloo."""

    weight_sync_mode: Literal["full", "delta"] = "full"
    """Send all tensors, or only those that changed since the last sync."""

    weight_sync_compression: Literal["none", "zstd"] = "none"
    """Compression of what travels; pays where the link is slower than about 300 MB/s."""

    weight_sync_url: str | None = None
    """Where --weight-sync-transport object_store keeps the last two versions: a directory or an fsspec URL."""

    update_weight_buffer_size: int = flag(512 << 20, ge=1, unit="bytes")
    """Size of one transfer bucket, two of which are held in memory; a larger tensor travels alone."""

    update_weights_interval: int = flag(1, ge=1, unit="rollouts")
    """Send weights to the engines after every so many rollouts, and after the last; samples may then be up to
    `update_weights_interval - 1` versions older than `--max-staleness` says."""

    weight_sync_timeout: float = flag(600.0, gt=0, unit="seconds")
    """Deadline of one whole weight transfer; a transfer that misses it fails and the version does not advance."""
