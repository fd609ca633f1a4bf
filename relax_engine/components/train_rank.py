"""One rank of a Megatron group as a Ray actor: thin, every method is one backend call.

The backend is built in `start`, not in the constructor, because rank 0 must first say where the
process group meets.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from relax_engine.algorithms.distillation import DistillationSettings
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.components.mode import old_is_current
from relax_engine.config import RunConfig
from relax_engine.stream.columns import ColumnBatch
from relax_engine.utils.hooks import load_function
from relax_engine.utils.network import free_port
from relax_engine.utils.stacks import sample_stacks
from relax_engine.weight_sync.messages import GroupAddress

if TYPE_CHECKING:
    from torch import Tensor

    from relax_engine.algorithms.objective import LossFn
    from relax_engine.backends.megatron.backend import MegatronBackend
    from relax_engine.weight_sync.inbox import WeightInbox
    from relax_engine.weight_sync.messages import BucketMeta, Source, SyncReport
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

    def address(self) -> str:
        """`host:port` where the ranks of this group can meet (asked of rank 0)."""
        return f"{ray.util.get_node_ip_address()}:{free_port()}"

    def facts(self) -> tuple[int, str, str | None]:
        """The process id, where standard error goes on this node, and the name of the accelerator."""
        import torch

        device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        return os.getpid(), os.readlink("/proc/self/fd/2"), device

    @ray.method(concurrency_group="inspect")
    def inspect(self) -> dict[str, str]:
        """Stack samples, also while a call is under way."""
        return sample_stacks()

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

    def load_adapters(self, directory: str) -> None:
        """Start the adapters from a PEFT directory."""
        self.backend.load_adapters(directory)

    def save(self, directory: str, *, optimizer: bool, deferred: bool) -> None:
        """Write one checkpoint iteration, together with all other ranks."""
        self.backend.save(directory, extra={}, optimizer=optimizer, deferred=deferred)

    def finish_save(self) -> None:
        """Wait until a deferred save is on disk."""
        self.backend.finish_save(self.config.flat.wait_timeout)

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
        self,
        batch: ColumnBatch,
        rows: Sequence[int],
        *,
        temperature: float,
        max_tokens: int,
        weights: str | None,
        experts: bool,
    ) -> ColumnBatch | None:
        """`log_probs` of the response tokens of `rows`, with `experts` also the `routed_experts` of all tokens; None
        except on the rank that speaks for its slice.

        `weights` names a snapshot to use instead of the present weights.
        """
        options: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens}
        chosen = batch.select(rows)
        with self.backend.snapshots.using(weights):
            if experts:
                columns = self.backend.forward_routed(chosen, **options)
            else:
                columns = {"log_probs": self.backend.forward_log_probs(chosen, **options)}
        return ColumnBatch(columns) if self.backend.speaks_for_slice else None

    def forward_likeliest(
        self,
        batch: ColumnBatch,
        rows: Sequence[int],
        *,
        count: int,
        temperature: float,
        max_tokens: int,
        weights: str | None,
    ) -> ColumnBatch | None:
        """`log_probs` of the response tokens of `rows`, `ids` and `values` of the `count` likeliest in their place."""
        with self.backend.snapshots.using(weights):
            columns = self.backend.forward_likeliest(
                batch.select(rows), count, temperature=temperature, max_tokens=max_tokens
            )
        return ColumnBatch(columns) if self.backend.speaks_for_slice else None

    def forward_values(self, batch: ColumnBatch, rows: Sequence[int], *, max_tokens: int) -> ColumnBatch | None:
        """`values` before the response tokens of `rows`; None except on the rank that speaks for its slice."""
        column = self.backend.forward_values(batch.select(rows), max_tokens=max_tokens)
        return ColumnBatch({"values": column}) if self.backend.speaks_for_slice else None

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
        from relax_engine.algorithms.classification import ClassificationLoss
        from relax_engine.algorithms.custom_loss import CustomLoss
        from relax_engine.algorithms.objective import make_policy_loss
        from relax_engine.algorithms.preference import PreferenceLoss
        from relax_engine.algorithms.supervised import make_sft_loss
        from relax_engine.algorithms.value import make_value_loss

        flat = self.config.flat
        if flat.loss_type == "sft":
            return make_sft_loss()
        if flat.loss_type == "dpo":
            return PreferenceLoss()
        if flat.loss_type == "seq_cls":
            return ClassificationLoss(
                multi_label=flat.problem_type == "multi_label_classification", threshold=flat.classification_threshold
            )
        settings = AlgorithmSettings.from_config(flat)
        if self.value_head:
            return make_value_loss(settings)
        policy = make_policy_loss(
            settings,
            true_on_policy=old_is_current(self.config),
            args=flat,
            distillation=DistillationSettings.from_config(flat),
        )
        if flat.loss_type == "custom_loss":
            return CustomLoss(policy, load_function(flat.custom_loss_function_path), flat)
        return policy

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

        def gather() -> Iterator[tuple[str, Tensor]]:
            self._announce(True)
            return backend.named_hf_tensors()

        try:
            return asyncio.run(self._sender.push(gather, receivers, version))
        finally:
            self._announce(False)

    @cached_property
    def _sender(self) -> WeightSender:
        from relax_engine.weight_sync.settings import make_sender

        return make_sender(self.config, ray.util.get_node_ip_address())

    def _announce(self, gather: bool | None) -> bool:
        """Rank 0 says whether a gather follows, the others (None) wait to hear it."""
        if self.world_size == 1:
            return bool(gather)
        import torch.distributed as dist

        message = [gather]
        dist.broadcast_object_list(message, src=0)
        return bool(message[0])

    @cached_property
    def _inbox(self) -> WeightInbox:
        from relax_engine.weight_sync.inbox import WeightInbox

        backend = self.backend
        return WeightInbox(
            backend.load_hf_tensors, backend.named_hf_tensors, timeout_s=self.config.flat.weight_sync_timeout
        )

    def join(self, address: GroupAddress, rank: int) -> None:
        """Enter a weight-update group."""
        self._inbox.join(address, rank)

    def leave(self, name: str) -> None:
        """Leave the weight-update group `name`."""
        self._inbox.leave(name)

    def begin_update(self) -> str:
        """Open a weight update; returns the digest of the weights that this rank has."""
        return self._inbox.begin()

    def receive(self, bucket: BucketMeta, source: Source) -> None:
        """Take one bucket."""
        self._inbox.receive(bucket, source)

    def pull(self, url: str) -> None:
        """Read what differs of the version stored at `url`."""
        self._inbox.pull(url)

    def end_update(self) -> None:
        """Close the weight update: every tensor must have arrived, or been there."""
        self._inbox.end()

    def close(self) -> None:
        """Leave all process groups."""
        if self._backend is not None:
            self._backend.close()


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
