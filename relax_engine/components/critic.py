"""The critic role: values for every row, and a regression on the returns that are made of them."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import numpy as np
from ray import serve

from relax_engine.algorithms.batch import batch_totals
from relax_engine.algorithms.reduction import BatchTotals, loss_scale
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.value import ValueLoss
from relax_engine.components.critic_settings import critic_config, initial_critic
from relax_engine.components.mode import (
    VALUES,
    checkpoint_is_due,
    forward_budget,
    input_columns,
    rows_per_part,
    steps_per_rollout,
)
from relax_engine.components.partition import PartitionReader
from relax_engine.components.role import Role, RoleContext, ingress
from relax_engine.components.saver import CheckpointSaver
from relax_engine.components.train_group import TrainGroup, load_weights
from relax_engine.errors import RelaxError
from relax_engine.rollout.staleness import StalenessCheck
from relax_engine.stream.columns import ColumnBatch

_TRAINED = (
    "rewards",
    "raw_reward",
    "group_index",
    "sample_indices",
    "first_version",
    "last_version",
    *ValueLoss.columns,
)


class CriticError(RelaxError):
    """The critic did not finish a step in time."""


class Critic(Role):
    """Partition by partition: values, then optimizer steps on the returns, then (where due) a checkpoint.

    The order is the same in every mode, so the values of partition k come from a critic that has
    trained on all partitions before k, whatever the timing of other roles. Values go to the stream
    as rows arrive; the returns come back through it, from the advantages role (fully async) or the
    actor. The critic never waits for the actor's weights; the actor waits in `trained` before it
    completes a step, so a checkpoint of the actor always has one of the critic beside it.
    """

    role: ClassVar[str] = "critic"

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        self.reduction = AlgorithmSettings.from_config(self.args).reduction
        self.saver: CheckpointSaver | None = None
        self._metrics: dict[int, dict[str, float]] = {}
        self._step_finished = asyncio.Condition()

    async def setup(self) -> None:
        """Start the ranks and load weights: the checkpoint's, or the initial ones."""
        await asyncio.to_thread(self._setup)

    def _setup(self) -> None:
        self.group = TrainGroup(
            critic_config(self.config),
            self.context.slots,
            role=self.role,
            trainable=True,
            value_head=True,
            timeout_s=self.args.wait_timeout,
        )
        if self.args.critic_save:
            self.saver = CheckpointSaver(self.config, self.group, self.args.critic_save)
        if self.context.resume_from:
            self.group.load(self.context.resume_from, optimizer=not self.context.weights_only)
        else:
            load_weights(self.group, initial_critic(self.config))

    async def run(self) -> dict[str, Any]:
        """Process all partitions."""
        for rollout_id in range(self.context.start_step, self.context.num_steps):
            if self.stopping:
                break
            self.step = rollout_id
            await asyncio.to_thread(self._add_values, f"train_{rollout_id}")
            metrics = await asyncio.to_thread(self._train, rollout_id)
            await asyncio.to_thread(self._checkpoint, rollout_id)
            async with self._step_finished:
                self._metrics[rollout_id] = metrics
                self._step_finished.notify_all()
        return self.outcome()

    async def trained(self, rollout_id: int) -> dict[str, float]:
        """Wait until the partition has been trained and, where due, saved; its metrics, named `critic/...`.

        Raises:
            CriticError: not within `--wait-timeout`.
        """
        timeout = self.args.wait_timeout
        async with self._step_finished:
            try:
                await asyncio.wait_for(self._step_finished.wait_for(lambda: rollout_id in self._metrics), timeout)
            except TimeoutError as error:
                raise CriticError(
                    f"the critic did not finish step {rollout_id} within {timeout:g} s; it works on step {self.step}"
                ) from error
            self._metrics = {step: metrics for step, metrics in self._metrics.items() if step >= rollout_id}
            return self._metrics[rollout_id]

    async def forget_before(self, iteration: int) -> None:
        """Delete checkpoints older than `iteration`, the oldest that the actor keeps."""
        if self.saver is not None:
            manager = self.saver.manager
            saved = await asyncio.to_thread(manager.complete_iterations)
            kept = [each for each in saved if each >= iteration]
            await asyncio.to_thread(manager.prune, max(1, len(kept)))

    async def close(self) -> None:
        """End the rank processes."""
        await asyncio.to_thread(self.group.close)

    def _add_values(self, partition: str) -> None:
        """Part by part, as rows arrive; in colocate once the engines have given their memory back."""
        if self.config.mode == "colocate":
            self.stream.wait_partition(partition, "sealed", deadline_s=self.args.wait_timeout)
        rows, sequence = rows_per_part(self.config), 0
        while True:
            delivery = self.stream.take(
                "critic_values",
                partition,
                sequence,
                input_columns(self.config),
                rows,
                deadline_s=self.args.wait_timeout,
            )
            if delivery.end:
                return
            batch = self.stream.fetch(delivery)
            with self.phase(VALUES):
                values = self.group.forward_values(batch, max_tokens=forward_budget(self.config))
            self.stream.put_columns(partition, delivery.rows, ColumnBatch({VALUES: values}))
            sequence += 1

    def _train(self, rollout_id: int) -> dict[str, float]:
        """As many optimizer steps as the actor takes, on the samples that are not too old for it."""
        reader = PartitionReader(
            self.stream,
            self.config,
            task="critic_train",
            partition=f"train_{rollout_id}",
            columns=[*input_columns(self.config), *_TRAINED],
        )
        fresh = StalenessCheck(rollout_id, self.config.staleness_bound)
        steps, trained = [], []
        for step in range(steps_per_rollout(self.config)):
            totals = BatchTotals(0, 0)
            for part in reader.parts(step):
                kept = fresh.keep(part)
                if not kept.num_rows:
                    continue
                totals += batch_totals({name: column.values for name, column in kept.items()}, kept[VALUES].offsets)
                trained.append(kept.only(["loss_masks", VALUES, "returns"]))
                with self.phase("train"):
                    self.group.accumulate(
                        kept,
                        temperature=1.0,
                        max_tokens=self.args.max_tokens_per_gpu,
                        micro_batch_size=self.args.micro_batch_size,
                    )
            if totals.samples:
                with self.phase("optimizer"):
                    steps.append(self.group.finish_step(loss_scale(totals, self.reduction)))
        if not steps:
            return {}
        metrics = {f"critic/{name}": float(np.mean([each[name] for each in steps])) for name in steps[0]}
        metrics["critic/explained_variance"] = explained_variance(ColumnBatch.concat(trained))
        return metrics

    def _checkpoint(self, rollout_id: int) -> None:
        if self.saver is None:
            return
        if not checkpoint_is_due(self.config, rollout_id, self.context.num_steps):
            self.saver.settle()
            return
        with self.phase("save"):
            self.saver.save(rollout_id)
            if rollout_id + 1 == self.context.num_steps:
                self.saver.finish()


def explained_variance(batch: ColumnBatch) -> float:
    """`1 - var(returns - values) / var(returns)` over unmasked tokens: 1 is perfect, 0 no better than a constant.

    0 where the returns are all equal.
    """
    kept = batch["loss_masks"].values != 0
    returns, values = (batch[name].values[kept].astype(np.float64) for name in ("returns", VALUES))
    spread = returns.var() if len(returns) else 0.0
    return float(1.0 - (returns - values).var() / spread) if spread > 0.0 else 0.0


CriticDeployment = serve.deployment(serve.ingress(ingress(Critic))(Critic))
