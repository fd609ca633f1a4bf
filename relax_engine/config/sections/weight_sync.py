"""How new weights reach the engines."""

from __future__ import annotations

from relax_engine.config.sections.base import Section, flag


class WeightSync(Section):
    """Buckets and deadlines of the weight transfer."""

    update_weight_buffer_size: int = flag(512 << 20, ge=1, unit="bytes")
    """Size of one transfer bucket; a larger tensor travels alone."""

    update_weights_interval: int = flag(1, ge=1, unit="rollouts")
    """Send weights to the engines after every so many rollouts, and after the last; samples may then be up to
    `update_weights_interval - 1` versions older than `--max-staleness` says."""

    weight_sync_timeout: float = flag(600.0, gt=0, unit="seconds")
    """Deadline of one whole weight transfer; a transfer that misses it fails and the version does not advance."""
