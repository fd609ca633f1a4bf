"""The ranks of one Megatron model, addressed as one: splits rows, gathers results, in row order."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray.exceptions import RayActorError, RayTaskError

from relax_engine.checkpoint.resolve import resolve_checkpoint
from relax_engine.components.train_rank import TrainRank, row_shares
from relax_engine.config import RunConfig
from relax_engine.core.placement import Slot
from relax_engine.errors import RelaxError
from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.utils.logs import log_tail
from relax_engine.utils.waits import waiting
from relax_engine.weight_sync.messages import GroupAddress

if TYPE_CHECKING:
    from relax_engine.weight_sync.messages import BucketMeta, Receiver, Source, SyncReport


_OTHERS_S = 2.0
_INSPECT_S = 10.0


class TrainGroupError(RelaxError):
    """A rank failed: the message has the rank, what it raised, and the end of its log."""


class RankLostError(TrainGroupError):
    """A rank's process died, or did not answer in time."""


class TrainGroup:
    """All ranks of a role. Every call has the deadline `timeout_s` and fails as soon as one rank does."""

    def __init__(
        self,
        config: RunConfig,
        slots: Sequence[Slot],
        *,
        role: str,
        trainable: bool,
        timeout_s: float,
        value_head: bool = False,
    ) -> None:
        self.config = config
        self.role = role
        self.timeout_s = timeout_s
        self.balance = config.flat.balance_data
        environment = {"env_vars": config.flat.train_env_vars} if config.flat.train_env_vars else {}
        self._logs: list[str] = []
        self.steps = 0  # optimizer steps that were asked for
        self._order = threading.Lock()  # calls of several threads reach every rank in the same order
        self._ranks: list[Any] = [
            ray.remote(concurrency_groups={"inspect": 1})(TrainRank)  # type: ignore[call-overload]
            .options(**slot.actor_options(), runtime_env=environment, name=None, max_restarts=0)
            .remote(config, rank=rank, world_size=len(slots), trainable=trainable, value_head=value_head)
            for rank, slot in enumerate(slots)
        ]
        facts = self._call("facts")
        self._logs = [log for _, log, _ in facts]
        self.processes = {f"rank {rank}": pid for rank, (pid, _, _) in enumerate(facts)}
        self.device_name: str | None = facts[0][2]
        address = self._wait("address", [self._ranks[0].address.remote()])[0]
        self._coordinates: list[dict[str, int]] = self._call("start", address)
        self.size = len(slots)
        self.dp_size = self._coordinates[0]["dp_size"]

    def load_hf(self, directory: str) -> None:
        """Load a Hugging Face directory on every rank."""
        self._call("load_hf", directory)

    def load(self, directory: str, *, optimizer: bool) -> dict[str, Any]:
        """Load one checkpoint iteration; returns its `extra`."""
        extra: dict[str, Any] = self._call("load", directory, optimizer=optimizer)[0]
        return extra

    def load_adapters(self, directory: str) -> None:
        """Start the adapters from a PEFT directory."""
        self._call("load_adapters", directory)

    def save(self, directory: str, *, optimizer: bool = True, deferred: bool = False) -> None:
        """Write one checkpoint iteration; with `deferred` it is written when `finish_save` returns."""
        self._call("save", directory, optimizer=optimizer, deferred=deferred)

    def finish_save(self) -> None:
        """Wait until a deferred save is on disk."""
        self._call("finish_save")

    def save_snapshot(self, tag: str, directory: str) -> None:
        """Write the weights of a snapshot, without optimizer, as a checkpoint iteration of their own."""
        self._call("save_snapshot", tag, directory)

    def snapshot(self, tag: str) -> None:
        """Keep a copy of the present weights under `tag` on every rank."""
        self._call("snapshot", tag)

    def discard_snapshot(self, tag: str) -> None:
        """Give up the copy under `tag`."""
        self._call("discard_snapshot", tag)

    def forward_log_probs(
        self, batch: ColumnBatch, *, temperature: float, max_tokens: int, weights: str | None = None
    ) -> Column:
        """Log-probs of all response tokens, float32 in compact layout, rows in batch order."""
        policy = self.forward_policy(batch, temperature=temperature, max_tokens=max_tokens, weights=weights)
        return policy["log_probs"]

    def forward_policy(
        self,
        batch: ColumnBatch,
        *,
        temperature: float,
        max_tokens: int,
        weights: str | None = None,
        experts: bool = False,
    ) -> ColumnBatch:
        """`log_probs` of all response tokens, and with `experts` the `routed_experts` of all tokens, in batch order."""
        options = {"temperature": temperature, "max_tokens": max_tokens, "weights": weights}
        return self._forward("forward_log_probs", batch, experts=experts, **options)

    def forward_likeliest(
        self, batch: ColumnBatch, count: int, *, temperature: float, max_tokens: int, weights: str | None = None
    ) -> ColumnBatch:
        """Log-probs of all response tokens, and the `count` likeliest tokens in the place of each.

        Columns `log_probs`, `ids` and `values`, as of `MegatronBackend.forward_likeliest`, rows in batch order.
        """
        options = {"temperature": temperature, "max_tokens": max_tokens, "weights": weights}
        return self._forward("forward_likeliest", batch, count=count, **options)

    def forward_values(self, batch: ColumnBatch, *, max_tokens: int) -> Column:
        """A critic's values before all response tokens, float32 in compact layout, rows in batch order."""
        return self._forward("forward_values", batch, max_tokens=max_tokens)["values"]

    def _forward(self, method: str, batch: ColumnBatch, **options: Any) -> ColumnBatch:
        """A forward pass of every rank over its share; the rows together again."""
        shares = self._shares(batch)
        reference = ray.put(batch)
        answers = self._each(method, [(reference, shares[place["dp_rank"]]) for place in self._coordinates], **options)
        parts = [
            (part, shares[place["dp_rank"]])
            for part, place in zip(answers, self._coordinates, strict=True)
            if part is not None
        ]
        together = ColumnBatch.concat([part for part, _ in parts])
        return together.select(np.argsort(np.concatenate([rows for _, rows in parts]), kind="stable"))

    def accumulate(
        self, batch: ColumnBatch, *, temperature: float, max_tokens: int | None, micro_batch_size: int
    ) -> None:
        """Add the gradient of `batch` to the step under way, its rows spread over the data-parallel ranks."""
        shares = self._shares(batch)
        reference = ray.put(batch)
        self._each(
            "accumulate",
            [(reference, shares[place["dp_rank"]]) for place in self._coordinates],
            temperature=temperature,
            max_tokens=max_tokens,
            micro_batch_size=micro_batch_size,
        )

    def finish_step(self, scale: float) -> dict[str, float]:
        """One optimizer step on the accumulated gradient times `scale`."""
        with self._order:
            self.steps += 1
            calls = self._submit("finish_step", [(scale,)] * len(self._ranks))
        metrics: dict[str, float] = self._wait("finish_step", calls)[0]
        return metrics

    def push_weights(
        self, receivers: Sequence[Receiver], version: int, *, at_step: int | None = None
    ) -> SyncReport | None:
        """Send the weights to `receivers` as `version`; None, and nothing sent, when `steps` is not `at_step`."""
        with self._order:
            if at_step is not None and at_step != self.steps:
                return None
            calls = self._submit("push_weights", [(list(receivers), version)] * len(self._ranks))
        report: SyncReport = next(r for r in self._wait("push_weights", calls) if r is not None)
        return report

    def join(self, address: GroupAddress, first_rank: int) -> None:
        """Enter a weight-update group; rank i of this group becomes `first_rank + i`."""
        self._each("join", [(address, first_rank + index) for index in range(len(self._ranks))])

    def leave(self, name: str) -> None:
        """Leave a weight-update group."""
        self._call("leave", name)

    def begin_update(self) -> str:
        """Open a weight update on every rank; returns the digest of the weights that all of them have."""
        bases: set[str] = set(self._call("begin_update"))
        return bases.pop() if len(bases) == 1 else ""

    def receive(self, bucket: BucketMeta, sources: Sequence[Source]) -> None:
        """Take one bucket on every rank; `sources` has one entry, or one for each rank."""
        each = sources if len(sources) == len(self._ranks) else [sources[0]] * len(self._ranks)
        self._each("receive", [(bucket, source) for source in each])

    def pull(self, url: str) -> None:
        """Read what differs of the version stored at `url`, on every rank."""
        self._call("pull", url)

    def end_update(self) -> None:
        """Close the weight update on every rank."""
        self._call("end_update")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self._ranks)

    def inspect(self) -> dict[str, str]:
        """Stack samples of every rank; a rank that does not answer is said to be silent."""
        calls = [rank.inspect.remote() for rank in self._ranks]
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=_INSPECT_S)
        stacks: dict[str, str] = {}
        for rank, call in enumerate(calls):
            try:
                answer = ray.get(call) if call in ready else {"": f"no answer within {_INSPECT_S:g} s\n"}
            except RayActorError as error:
                answer = {"": f"dead: {error}\n"}
            stacks |= {f"rank {rank} {name}".strip(): stack for name, stack in answer.items()}
        return stacks

    def close(self) -> None:
        """End all rank processes."""
        ready, _ = ray.wait([rank.close.remote() for rank in self._ranks], num_returns=len(self._ranks), timeout=10)
        del ready
        for rank in self._ranks:
            ray.kill(rank)

    def _shares(self, batch: ColumnBatch) -> list[list[int]]:
        return row_shares(batch["tokens"].lengths, self.dp_size, balance=self.balance)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        return self._each(method, [args] * len(self._ranks), **kwargs)

    def _each(self, method: str, arguments: Sequence[tuple[Any, ...]], **kwargs: Any) -> list[Any]:
        """One call to every rank, each with its own positional arguments."""
        with self._order:
            calls = self._submit(method, arguments, **kwargs)
        return self._wait(method, calls)

    def _submit(self, method: str, arguments: Sequence[tuple[Any, ...]], **kwargs: Any) -> list[ray.ObjectRef]:
        """Queue a call at every rank; whoever calls this holds `_order`, so that all ranks have the same queue."""
        return [
            getattr(rank, method).remote(*args, **kwargs) for rank, args in zip(self._ranks, arguments, strict=True)
        ]

    def _wait(self, method: str, references: list[ray.ObjectRef]) -> list[Any]:
        """Results in order; the first failure ends the wait, so that a dead rank cannot hang the rest."""
        pending = list(references)
        with waiting(f"{method}() of {len(references)} ranks of {self.role}"):
            while pending:
                done, pending = ray.wait(pending, num_returns=1, timeout=self.timeout_s)
                if not done:
                    silent = sorted(references.index(reference) for reference in pending)
                    raise RankLostError(
                        f"{self.role}: ranks {silent} of {len(references)} did not answer {method}() "
                        f"within {self.timeout_s:g} s{self._log_of(silent[0])}"
                    )
                try:
                    ray.get(done)
                except (RayActorError, RayTaskError) as error:
                    raise self._failure(method, references, done[0], error) from error
        return ray.get(references)

    def _failure(
        self, method: str, references: list[ray.ObjectRef], failed: ray.ObjectRef, error: RayActorError | RayTaskError
    ) -> Exception:
        """A rank that died is to blame, not the others, whose collectives fail with it."""
        ray.wait(references, num_returns=len(references), timeout=_OTHERS_S)
        for rank, reference in enumerate(references):
            death = error if reference is failed else _error_of(reference)
            if isinstance(death, RayActorError):
                return RankLostError(f"{self.role}: the process of rank {rank} died: {death}{self._log_of(rank)}")
        rank = references.index(failed)
        cause = error.cause if isinstance(error, RayTaskError) and error.cause is not None else error
        if isinstance(cause, RelaxError):
            return cause
        return TrainGroupError(
            f"{self.role}: rank {rank} failed in {method}(): {type(cause).__name__}: {cause}{self._log_of(rank)}"
        )

    def _log_of(self, rank: int) -> str:
        path = self._logs[rank] if rank < len(self._logs) else ""
        tail = log_tail(Path(path)) if path else ""
        return f"\nlast lines of its log {path}:\n{tail}" if tail else ""


def _error_of(reference: ray.ObjectRef) -> Exception | None:
    """What the call raised; None if it did not, or has not ended."""
    try:
        if ray.wait([reference], timeout=0)[0]:
            ray.get(reference)
    except (RayActorError, RayTaskError) as error:
        return error
    return None


def load_weights(group: TrainGroup, path: str) -> None:
    """Load initial weights from a Hugging Face directory, a checkpoint iteration, or a run's checkpoints."""
    if (Path(path) / "config.json").is_file():
        group.load_hf(path)
    else:
        group.load(str(resolve_checkpoint(path)), optimizer=False)
