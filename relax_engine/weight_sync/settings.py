"""The sender that a configuration asks for."""

from __future__ import annotations

from relax_engine.config import RunConfig
from relax_engine.weight_sync.sender import WeightSender
from relax_engine.weight_sync.store import WeightStore
from relax_engine.weight_sync.transports.base import Transport
from relax_engine.weight_sync.transports.broadcast import Broadcast
from relax_engine.weight_sync.transports.object_store import ObjectStore
from relax_engine.weight_sync.transports.shared_memory import SharedMemory


def make_sender(config: RunConfig, host: str) -> WeightSender:
    """A sender in a process that others reach at `host`."""
    options = config.weight_sync
    compress = options.weight_sync_compression != "none"
    transport: Transport
    if options.weight_sync_transport == "shared_memory":
        transport = SharedMemory()
    elif options.weight_sync_transport == "object_store":
        assert options.weight_sync_url is not None, "the doctor requires it"
        transport, compress = ObjectStore(WeightStore(options.weight_sync_url, compress=compress)), False
    else:
        transport = Broadcast(host, backend=options.checkpoint_engine_backend)
    return WeightSender(
        transport,
        bucket_bytes=options.update_weight_buffer_size,
        timeout_s=options.weight_sync_timeout,
        delta=options.weight_sync_mode == "delta",
        compress=compress,
    )
