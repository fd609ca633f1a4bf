"""Advantages: a function of one optimizer step's batch, and the role that applies it in fully-async mode."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import numpy as np
from ray import serve

from relax_engine.algorithms import registry
from relax_engine.algorithms.batch import training_columns
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.components.mode import ROLLOUT_COLUMNS, forward_columns, steps_per_rollout, trains_on_policy
from relax_engine.components.role import Role, ingress
from relax_engine.config import RunConfig
from relax_engine.stream.columns import Column, ColumnBatch


def advantage_columns(batch: ColumnBatch, config: RunConfig) -> dict[str, Column]:
    """`advantages`, `returns` and `loss_weights` for the rows of one optimizer step."""
    settings = AlgorithmSettings.from_config(config.flat)
    masks = batch["loss_masks"]
    tensors = training_columns(
        registry.get(settings.advantage_estimator),
        settings,
        {name: column.values for name, column in batch.items() if name != "tokens"},
        masks.offsets,
        true_on_policy=trains_on_policy(config),
    )
    return {name: Column(tensor.numpy(), masks.offsets) for name, tensor in tensors.items()}


def supervised_weights(batch: ColumnBatch) -> Column:
    """`loss_weights` of a supervised batch: the mean over all answer tokens."""
    masks = batch["loss_masks"]
    values = masks.values.astype(np.float32)
    return Column(values / max(float(values.sum()), 1.0), masks.offsets)


class Advantages(Role):
    """Adds advantages to every partition as soon as its log-probs are there. Needs no device."""

    role: ClassVar[str] = "advantages"

    async def setup(self) -> None:
        """Nothing to prepare."""

    async def run(self) -> dict[str, Any]:
        """Process all partitions."""
        for rollout_id in range(self.context.start_step, self.context.num_steps):
            if self.stopping:
                break
            self.step = rollout_id
            await asyncio.to_thread(self._partition, f"train_{rollout_id}")
        return self.outcome()

    async def close(self) -> None:
        """Nothing to release."""

    def _partition(self, partition: str) -> None:
        """Optimizer step by optimizer step: normalisation is over the rows of one step."""
        columns = [name for name in ROLLOUT_COLUMNS if name != "tokens"] + list(forward_columns(self.config).values())
        rows = self.args.rollout_batch_size * self.args.n_samples_per_prompt // steps_per_rollout(self.config)
        sequence = 0
        while True:
            delivery = self.stream.take(
                "compute_advantages_and_returns",
                partition,
                sequence,
                columns,
                rows,
                deadline_s=self.args.wait_timeout,
            )
            if delivery.end:
                return
            batch = self.stream.fetch(delivery)
            with self.phase("advantages"):
                added = ColumnBatch(advantage_columns(batch, self.config))
            self.stream.put_columns(partition, delivery.rows, added)
            sequence += 1


AdvantagesDeployment = serve.deployment(serve.ingress(ingress(Advantages))(Advantages))
