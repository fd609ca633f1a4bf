"""One rank of a Megatron group as a Ray actor: thin, every method is one backend call.

The backend is built in `start`, not in the constructor, because rank 0 must first say where the
process group meets.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.components.mode import old_is_current
from relax_engine.config import RunConfig
from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.utils.network import free_port
from relax_engine.weight_sync.messages import GroupAddress

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from relax_engine.algorithms.objective import LossFn
    from relax_engine.backends.megatron.backend import MegatronBackend
    from relax_engine.weight_sync.messages import BucketMeta, SyncReport
    from relax_engine.weight_sync.sender import WeightSender


class TrainRank:
    """A rank of the actor or the critic (trainable), or of a forward-only role that receives weights."""

    def __init__(
        self, config: RunConfig, *, rank: int, world_size: int, trainable: bool, value_head: bool = False
    ) -> None:
        self.config = config
        self.rank = rank
        self.world_size = world_size
        self.trainable = trainable
        self.value_head = value_head
        self._backend: MegatronBackend | None = None
        self._sender: WeightSender | None = None
        self._inbox = _WeightInbox()

    def address(self) -> str:
        """`host:port` where the ranks of this group can meet (asked of rank 0)."""
        return f"{ray.util.get_node_ip_address()}:{free_port()}"

    def start(self, address: str) -> dict[str, int]:
        """Build the backend; returns this rank's place among the data-parallel ranks."""
        from relax_engine.backends.megatron.backend import MegatronBackend
        from relax_engine.backends.megatron.settings import read_settings

        if self.config.flat.deterministic:
            use_deterministic_kernels()
        self._backend = MegatronBackend(
            read_settings(self.config.flat, value_head=self.value_head),
            rank=self.rank,
            world_size=self.world_size,
            init_method=f"tcp://{address}",
            trainable=self.trainable,
        )
        return {"dp_rank": self._backend.data_parallel_rank, "dp_size": self._backend.data_parallel_size}

    @property
    def backend(self) -> MegatronBackend:
        """The backend of a started rank."""
        if self._backend is None:
            raise RuntimeError(f"rank {self.rank} was used before start()")
        return self._backend

    def load_hf(self, directory: str) -> None:
        """Load weights from a Hugging Face directory."""
        self.backend.load_hf(directory)

    def load(self, directory: str, *, optimizer: bool) -> dict[str, Any]:
        """Load one checkpoint iteration; returns what was saved as `extra`."""
        return self.backend.load(directory, optimizer=optimizer)

    def save(self, directory: str, extra: dict[str, Any]) -> None:
        """Write one checkpoint iteration, together with all other ranks."""
        self.backend.save(directory, extra=extra)

    def snapshot(self, tag: str) -> None:
        """Keep a copy of the present weights under `tag`."""
        self.backend.snapshots.keep(tag)

    def discard_snapshot(self, tag: str) -> None:
        """Give up the copy under `tag`."""
        self.backend.snapshots.discard(tag)

    def save_snapshot(self, tag: str, directory: str) -> None:
        """Write the weights of a snapshot, together with all other ranks."""
        with self.backend.snapshots.using(tag):
            self.backend.save(directory, extra={}, optimizer=False)

    def forward_log_probs(
        self, batch: ColumnBatch, rows: Sequence[int], *, temperature: float, max_tokens: int, weights: str | None
    ) -> Column | None:
        """Log-probs of the response tokens of `rows`; None except on the rank that speaks for its slice.

        `weights` names a snapshot to use instead of the present weights.
        """
        with self.backend.snapshots.using(weights):
            column = self.backend.forward_log_probs(batch.select(rows), temperature=temperature, max_tokens=max_tokens)
        return column if self.backend.speaks_for_slice else None

    def forward_values(self, batch: ColumnBatch, rows: Sequence[int], *, max_tokens: int) -> Column | None:
        """Values before the response tokens of `rows`; None except on the rank that speaks for its slice."""
        column = self.backend.forward_values(batch.select(rows), max_tokens=max_tokens)
        return column if self.backend.speaks_for_slice else None

    def accumulate(
        self,
        batch: ColumnBatch,
        rows: Sequence[int],
        *,
        temperature: float,
        max_tokens: int | None,
        micro_batch_size: int,
    ) -> None:
        """Add the gradient of this rank's `rows` to the step under way."""
        self.backend.accumulate(
            batch.select(rows),
            self._loss,
            temperature=temperature,
            max_tokens=max_tokens,
            micro_batch_size=micro_batch_size,
        )

    def finish_step(self, scale: float) -> dict[str, float]:
        """One optimizer step on the accumulated gradient times `scale`."""
        return self.backend.finish_step(scale)

    @cached_property
    def _loss(self) -> LossFn:
        """The loss that the configuration and the head ask for."""
        from relax_engine.algorithms.objective import make_policy_loss
        from relax_engine.algorithms.supervised import make_sft_loss
        from relax_engine.algorithms.value import make_value_loss

        if self.config.flat.loss_type == "sft":
            return make_sft_loss()
        settings = AlgorithmSettings.from_config(self.config.flat)
        if self.value_head:
            return make_value_loss(settings)
        return make_policy_loss(settings, true_on_policy=old_is_current(self.config), args=self.config.flat)

    def push_weights(self, receivers: Sequence[Any], version: int) -> SyncReport | None:
        """Send this model to `receivers`. Collective; the source rank returns the report.

        Rank 0 may need several attempts, and gathers the tensors in each; it announces every gather
        to the other ranks, and the end.
        """
        backend = self.backend
        if self.rank != 0:
            while self._announce(None):
                for _ in backend.named_hf_tensors():
                    pass
            return None
        if self._sender is None:
            from relax_engine.weight_sync.sender import WeightSender

            flat = self.config.flat
            self._sender = WeightSender(
                host=ray.util.get_node_ip_address(),
                bucket_bytes=flat.update_weight_buffer_size,
                timeout_s=flat.weight_sync_timeout,
            )

        def gather() -> Iterator[tuple[str, Tensor]]:
            self._announce(True)
            return backend.named_hf_tensors()

        try:
            return asyncio.run(self._sender.push(gather, receivers, version))
        finally:
            self._announce(False)

    def _announce(self, gather: bool | None) -> bool:
        """Rank 0 says whether a gather follows, the others (None) wait to hear it."""
        if self.world_size == 1:
            return bool(gather)
        import torch.distributed as dist

        message = [gather]
        dist.broadcast_object_list(message, src=0)
        return bool(message[0])

    def join(self, address: GroupAddress, rank: int) -> None:
        """Enter a weight-update group."""
        self._inbox.join(address, rank, self.config.flat.weight_sync_timeout)

    def leave(self, name: str) -> None:
        """Leave the weight-update group `name`."""
        self._inbox.leave(name)

    def begin_update(self) -> None:
        """Open a weight update: buckets received from now on replace the weights."""
        self._inbox.begin(self.backend.load_hf_tensors)

    def receive(self, bucket: BucketMeta) -> None:
        """Take part in the broadcast of one bucket."""
        self._inbox.receive(bucket)

    def end_update(self) -> None:
        """Close the weight update: every tensor must have arrived."""
        self._inbox.end()

    def close(self) -> None:
        """Leave all process groups."""
        if self._backend is not None:
            self._backend.close()


class _WeightInbox:
    """Receives buckets and feeds them to a consumer that sees one continuous stream of tensors."""

    def __init__(self) -> None:
        self._groups: dict[str, ProcessGroup] = {}
        self._current = ""
        self._tensors: queue.Queue[tuple[str, Tensor] | None] = queue.Queue()
        self._loader: threading.Thread | None = None
        self._error: BaseException | None = None

    def join(self, address: GroupAddress, rank: int, timeout_s: float) -> None:
        from relax_engine.weight_sync.group import join_group

        self._groups[address.name] = join_group(address, rank, timeout_s=timeout_s)
        self._current = address.name

    def leave(self, name: str) -> None:
        from relax_engine.weight_sync.group import leave_group

        group = self._groups.pop(name, None)
        if group is not None:
            leave_group(group)

    def begin(self, consume: Any) -> None:
        self._finish()
        self._error = None
        self._tensors = queue.Queue()

        def load() -> None:
            try:
                consume(_until_none(self._tensors))
            except BaseException as error:  # noqa: BLE001 - raised again in end()
                self._error = error

        self._loader = threading.Thread(target=load, name="weight-inbox", daemon=True)
        self._loader.start()

    def receive(self, bucket: BucketMeta) -> None:
        import torch
        import torch.distributed as dist

        from relax_engine.weight_sync.buckets import unflatten
        from relax_engine.weight_sync.checksum import tensor_checksum

        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
        flat = torch.empty(bucket.nbytes, dtype=torch.uint8, device=device)
        dist.broadcast(flat, 0, self._groups[self._current])
        actual = tensor_checksum([flat])
        if actual != bucket.checksum:
            raise ValueError(
                f"bucket of {bucket.nbytes} bytes starting at {bucket.tensors[0].name!r} arrived with checksum "
                f"{actual}, sent with {bucket.checksum}"
            )
        for named in unflatten(bucket, flat):
            self._tensors.put(named)

    def end(self) -> None:
        self._finish()
        if self._error is not None:
            raise self._error

    def _finish(self) -> None:
        if self._loader is not None:
            self._tensors.put(None)
            self._loader.join()
            self._loader = None


def _until_none(tensors: queue.Queue[tuple[str, Tensor] | None]) -> Iterator[tuple[str, Tensor]]:
    while (item := tensors.get()) is not None:
        yield item


def use_deterministic_kernels() -> None:
    """Have torch use deterministic kernels only in this process; an operation without one is an error that names it."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def row_shares(token_counts: np.ndarray, shares: int, *, balance: bool) -> list[list[int]]:
    """Rows for each of `shares` data-parallel ranks.

    Balanced: longest first to the lightest share, rows of a share in their original order; else
    consecutive, equal up to one row. Deterministic.
    """
    if not balance or shares == 1:
        return [part.tolist() for part in np.array_split(np.arange(len(token_counts)), shares)]
    loads = np.zeros(shares)
    parts: list[list[int]] = [[] for _ in range(shares)]
    for row in np.argsort(-token_counts, kind="stable"):
        lightest = int(np.argmin(loads))
        parts[lightest].append(int(row))
        loads[lightest] += float(token_counts[row])
    return [sorted(part) for part in parts]
