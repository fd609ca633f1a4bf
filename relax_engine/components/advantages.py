"""Advantages: a function of one optimizer step's batch, and the role that applies it in fully-async mode."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from ray import serve

from relax_engine.algorithms import registry
from relax_engine.algorithms.batch import stage_columns, training_columns
from relax_engine.algorithms.corrections.mismatch import mismatch_metrics
from relax_engine.algorithms.custom_advantage import with_custom_advantage
from relax_engine.algorithms.distillation import DistillationSettings
from relax_engine.algorithms.reduction import UNKNOWN_TOTALS
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.components.mode import (
    ROLLOUT_COLUMNS,
    forward_columns,
    old_is_current,
    rows_per_advantages,
    teacher_columns,
    value_columns,
)
from relax_engine.components.postprocess import postprocessed
from relax_engine.components.role import Role, ingress
from relax_engine.config import RunConfig
from relax_engine.multimodal.media import TRAIN_INPUTS
from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.utils.hooks import load_function

_TASK = "compute_advantages_and_returns"
_INPUTS = ("tokens", TRAIN_INPUTS)
"""Columns that the model alone reads."""


def advantage_columns(batch: ColumnBatch, config: RunConfig) -> dict[str, Column]:
    """`advantages`, `returns` and `loss_weights` for rows of one optimizer step.

    Where `needs_whole_batch`, the rows must be all of the step's. The weights leave out the step's size, which
    `loss_scale` puts in when it is known.
    """
    settings = AlgorithmSettings.from_config(config.flat)
    masks = batch["loss_masks"]
    spec = registry.get(settings.advantage_estimator)
    custom = config.flat.custom_advantage_function_path
    if custom is not None:
        spec = with_custom_advantage(
            spec, load_function(custom), config.flat, [name for name in batch if name not in _INPUTS]
        )
    tensors = training_columns(
        spec,
        settings,
        {name: column.values for name, column in batch.items() if name not in _INPUTS},
        masks.offsets,
        true_on_policy=old_is_current(config),
        totals=UNKNOWN_TOTALS,
        distillation=DistillationSettings.from_config(config.flat),
    )
    columns = {name: Column(tensor.numpy(), masks.offsets) for name, tensor in tensors.items()}
    postprocess = config.flat.rollout_data_postprocess_path
    return columns if postprocess is None else postprocessed(load_function(postprocess), config.flat, batch, columns)


def batch_stage_columns(batch: ColumnBatch, present: Column, config: RunConfig) -> dict[str, Column]:
    """The columns that an algorithm with a batch stage makes from all rows of one step.

    Args:
        batch: The rows, with advantages.
        present: Log-probs of the weights that the step starts from.
        config: Of the run.
    """
    settings = AlgorithmSettings.from_config(config.flat)
    columns = {name: batch[name].values for name in ("loss_masks", "rollout_log_probs", "advantages")}
    spec = registry.get(settings.advantage_estimator)
    made = stage_columns(spec, settings, columns, present.offsets, present.values)
    return {name: Column(tensor.numpy(), present.offsets) for name, tensor in made.items()}


def mismatch(batch: ColumnBatch) -> dict[str, float]:
    """How far the columns `log_probs` and `rollout_log_probs` of a batch are apart, as `mismatch/...` metrics."""
    import torch

    train, rollout = (torch.tensor(batch[name].values) for name in ("log_probs", "rollout_log_probs"))
    metrics = mismatch_metrics(train, rollout, torch.tensor(batch["loss_masks"].values) != 0)
    return {name: float(value) for name, value in metrics.items()}


class Advantages(Role):
    """Adds advantages to every partition as soon as its log-probs are there. Needs no device."""

    role: ClassVar[str] = "advantages"

    async def setup(self) -> None:
        """Nothing to prepare."""

    async def run(self) -> dict[str, Any]:
        """Process all partitions."""
        await self.work_through(_TASK, self._part)
        return self.outcome()

    async def close(self) -> None:
        """Nothing to release."""

    async def _part(self, partition: str, sequence: int) -> bool:
        """One delivery; False at the end of the partition."""
        return await asyncio.to_thread(self._add, partition, sequence)

    def _add(self, partition: str, sequence: int) -> bool:
        """Part by part, or optimizer step by optimizer step where advantages compare all rows of one."""
        columns = [name for name in ROLLOUT_COLUMNS if name != "tokens"]
        columns += [*forward_columns(self.config).values(), *teacher_columns(self.config), *value_columns(self.config)]
        delivery = self.stream.take(
            _TASK,
            partition,
            sequence,
            columns,
            rows_per_advantages(self.config),
            deadline_s=self.args.wait_timeout,
        )
        if delivery.end:
            return False
        batch = self.stream.fetch(delivery)
        with self.phase("advantages"):
            added = ColumnBatch(advantage_columns(batch, self.config))
        self.stream.put_columns(partition, delivery.rows, added, task=_TASK, seq=sequence)
        return True


AdvantagesDeployment = serve.deployment(serve.ingress(ingress(Advantages))(Advantages))
