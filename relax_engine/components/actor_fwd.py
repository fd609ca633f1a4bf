"""Forward-only roles of fully-async mode: `actor_fwd` (follows the actor) and `reference` (stays, or follows slowly).

One class; the role decides which column it adds, and the actor which weight syncs reach it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from ray import serve

from relax_engine.components.mode import (
    forward_budget,
    input_columns,
    policy_columns,
    routing_columns,
    rows_per_part,
)
from relax_engine.components.old_policies import OldPolicies
from relax_engine.components.reference import load_reference
from relax_engine.components.role import Role, RoleContext, ingress
from relax_engine.components.train_group import TrainGroup, load_weights
from relax_engine.stream.columns import ColumnBatch
from relax_engine.weight_sync.messages import BucketMeta, GroupAddress, Source


class ForwardRole(Role):
    """Adds log-probs to every row as soon as it is in the stream.

    A forward pass and a weight update exclude each other: the update takes the lock in
    `begin_update` and gives it back in `end_update`, so no batch sees half-updated weights. An update
    that failed elsewhere begins again, with the lock already taken.
    """

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        self.column, *others = policy_columns(self.config, self.role)
        self._experts = bool(others)
        self.task = f"{self.role}_log_probs"
        self.version = context.start_step
        self.old_policies: OldPolicies | None = None
        self._columns = input_columns(self.config)
        if self.role == "actor_fwd" and self.args.keep_old_actor:
            self._columns.append("first_version")
        if self.role == "actor_fwd":
            self._columns += routing_columns(self.config)
        self._lock = asyncio.Lock()
        self._updated = asyncio.Event()
        self._updating = False

    async def setup(self) -> None:
        """Start the ranks and load the initial weights."""
        await asyncio.to_thread(self._setup)

    def _setup(self) -> None:
        args = self.args
        config = self.config.replace(**args.ref_actor_config) if args.ref_actor_config else self.config
        self.group = TrainGroup(
            config, self.context.slots, role=self.role, trainable=False, timeout_s=args.wait_timeout
        )
        if self.role == "reference":
            load_reference(self.group, self.context)
        else:
            load_weights(self.group, args.ref_load)
            if args.keep_old_actor:
                self.old_policies = OldPolicies(self.group, bound=self.config.staleness_bound)

    async def run(self) -> dict[str, Any]:
        """Process all partitions."""
        if self.context.restarts and self.role == "actor_fwd":
            # Rows are waiting, and only the actor has the weights to compute them with.
            await asyncio.wait_for(self._updated.wait(), self.args.wait_timeout)
        await self.work_through(self.task, self._part)
        return self.outcome()

    async def _part(self, partition: str, sequence: int) -> bool:
        """Handle one delivery; False at the end of the partition."""
        delivery = await asyncio.to_thread(
            self.stream.take,
            self.task,
            partition,
            sequence,
            self._columns,
            rows_per_part(self.config),
            deadline_s=self.args.wait_timeout,
        )
        if delivery.end:
            return False
        batch = await asyncio.to_thread(self.stream.fetch, delivery)
        async with self._lock:
            with self.phase(self.column):
                policy = await asyncio.to_thread(
                    (self.old_policies or self.group).forward_policy,
                    batch,
                    temperature=self.args.rollout_temperature,
                    max_tokens=forward_budget(self.group.config),
                    experts=self._experts,
                )
        added = ColumnBatch({self.column if name == "log_probs" else name: column for name, column in policy.items()})
        await asyncio.to_thread(self.stream.put_columns, partition, delivery.rows, added, task=self.task, seq=sequence)
        return True

    async def join(self, address: GroupAddress, first_rank: int) -> None:
        """Enter a weight-update group."""
        await asyncio.to_thread(self.group.join, address, first_rank)

    async def leave(self, name: str) -> None:
        """Leave a weight-update group."""
        await asyncio.to_thread(self.group.leave, name)

    async def begin_update(self) -> str:
        """Wait for the running forward pass and hold off the next; returns the digest of the present weights."""
        if not self._updating:
            await asyncio.wait_for(self._lock.acquire(), self.args.weight_sync_timeout)
            self._updating = True
        return await asyncio.to_thread(self.group.begin_update)

    async def receive(self, bucket: BucketMeta, sources: Sequence[Source]) -> None:
        """Take one bucket."""
        await asyncio.to_thread(self.group.receive, bucket, sources)

    async def pull(self, url: str) -> None:
        """Read what differs of the version stored at `url`."""
        await asyncio.to_thread(self.group.pull, url)

    async def end_update(self, version: int) -> None:
        """Adopt the new weights."""
        await asyncio.to_thread(self.group.end_update)
        if self.old_policies is not None:
            await asyncio.to_thread(self.old_policies.published, version)
        self.version = version
        self._updated.set()
        self._updating = False
        self._lock.release()

    def processes(self) -> dict[str, int]:
        """Process ids of the ranks."""
        return self.group.processes if hasattr(self, "group") else {}

    async def inspect_owned(self) -> dict[str, str]:
        """Stack samples of the ranks."""
        return await asyncio.to_thread(self.group.inspect)

    async def close(self) -> None:
        """End the rank processes."""
        await asyncio.to_thread(self.group.close)


class ActorFwd(ForwardRole):
    """Log-probs under the actor's weights as of the last sync."""

    role: ClassVar[str] = "actor_fwd"


class Reference(ForwardRole):
    """Log-probs under the reference weights: the initial ones, or the actor's as of the last `ref_update_interval`."""

    role: ClassVar[str] = "reference"


ActorFwdDeployment = serve.deployment(serve.ingress(ingress(ActorFwd))(ActorFwd))
ReferenceDeployment = serve.deployment(serve.ingress(ingress(Reference))(Reference))
