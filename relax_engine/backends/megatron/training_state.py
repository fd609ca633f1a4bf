"""What training adds to a model, and a checkpoint directory of both.

What lives here: a model's gradient buffers, optimizer and schedule, writing them with the model and reading them
back. What does not: the directory's format (`state.py`), and taking a step (`backend.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from torch import Tensor

from relax_engine.backends.megatron import state
from relax_engine.backends.megatron.model import ResponseModel
from relax_engine.backends.megatron.optimizer import build_optimizer, build_scheduler
from relax_engine.backends.megatron.settings import OptimizerSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Training:
    """Gradient buffers, optimizer and learning-rate schedule of one model."""

    ddp: DistributedDataParallel
    optimizer: MegatronOptimizer
    scheduler: OptimizerParamScheduler
    settings: OptimizerSettings

    @classmethod
    def of(cls, model: ResponseModel, settings: OptimizerSettings, dtype: torch.dtype) -> Training:
        """Make `model` trainable."""
        distributed = settings.use_distributed_optimizer
        ddp_config = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=distributed)
        ddp = DistributedDataParallel(model.config, ddp_config, model)
        optimizer = build_optimizer(ddp, settings, dtype)
        return cls(ddp, optimizer, build_scheduler(optimizer, settings), settings)

    def sharded_state(self, model_state: dict[str, Any], *, loading: bool) -> dict[str, Any]:
        """The optimizer's sharded state, or with `loading` the template to load it into."""
        distributed = self.settings.use_distributed_optimizer
        return state.optimizer_state(self.optimizer, model_state, distributed=distributed, loading=loading)

    def restore(self, optimizer: dict[str, Any], scheduler: dict[str, Any]) -> None:
        """Take over what a checkpoint holds."""
        self.optimizer.load_state_dict(optimizer)
        self.scheduler.num_steps = 0
        self.scheduler.load_state_dict(scheduler)


def write_checkpoint(
    directory: Path, model: ResponseModel, training: Training | None, *, iteration: int, extra: dict[str, Any]
) -> None:
    """Write the model, RNG state, and where given what training adds, into `directory` (created if absent).

    Raises:
        TypeError: `extra` holds something that could not be read back safely.
    """
    state.require_plain(extra)
    directory.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"model": model.sharded_state_dict()}
    if training is not None:
        content["optimizer"] = training.sharded_state(content["model"], loading=False)
        content["scheduler"] = training.scheduler.state_dict()
    content |= {
        "rng": state.rng_object(state.get_rng_state()),
        "world": state.world_shape(),
        "iteration": iteration,
        "extra": extra,
    }
    state.save_state(directory, content)


def read_checkpoint(
    directory: Path, model: ResponseModel, training: Training | None, *, absent: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Read the model, and with `training` also the optimizer, schedule and RNG state.

    Args:
        absent: parameters that the checkpoint does not have, and the values that they get.

    Returns:
        The plain part of the checkpoint: `iteration`, `extra` and others.

    Raises:
        FileNotFoundError: not a complete checkpoint.
        ValueError: it has no optimizer state, and `training` is given.
    """
    common = state.load_common(directory)
    template: dict[str, Any] = {"model": model.sharded_state_dict()}
    for name in absent:
        del template["model"][name]
    if training is not None:
        if "optimizer" not in common or "scheduler" not in common:
            raise ValueError(f"{directory} holds weights but no optimizer state; load it with optimizer=False")
        template["optimizer"] = training.sharded_state(template["model"], loading=True)
        if common.get("world") == state.world_shape():
            template["rng"] = state.rng_object({})
        else:
            logger.warning("%s was saved under %s: RNG state is seeded afresh", directory, common.get("world"))
    loaded = state.load_state(directory, template)
    model.load_state_dict(loaded["model"] | absent)
    if training is not None:
        training.restore(loaded["optimizer"], loaded["scheduler"])
        if "rng" in template:
            state.set_rng_state(loaded["rng"])
    return loaded
