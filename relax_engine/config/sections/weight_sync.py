"""How new weights reach the engines."""

from __future__ import annotations

from relax_engine.config.sections.base import Section, flag


class WeightSync(Section):
    """Buckets and deadlines of the weight transfer."""

    update_weight_buffer_size: int = flag(512 << 20, ge=1, unit="bytes")
    """Size of one transfer bucket; a larger tensor travels alone."""

    weight_sync_timeout: float = flag(600.0, gt=0, unit="seconds")
    """Deadline of one whole weight transfer; a transfer that misses it fails and the version does not advance."""
