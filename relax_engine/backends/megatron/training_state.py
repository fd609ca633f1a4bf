"""What training adds to a model, and a checkpoint directory of both.

What lives here: a model's gradient buffers, optimizer and schedule, writing them with the model and reading them
back. What does not: the directory's format (`state.py`), and taking a step (`backend.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from megatron.core.dist_checkpointing.dict_utils import merge
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from torch import Tensor

from relax_engine.backends.megatron import state
from relax_engine.backends.megatron.chunks import ModelChunks
from relax_engine.backends.megatron.deferred_writes import DeferredWrites
from relax_engine.backends.megatron.optimizer import build_optimizer, build_scheduler
from relax_engine.backends.megatron.settings import OptimizerSettings
from relax_engine.checkpoint.dcp_reader import DcpReader

logger = logging.getLogger(__name__)


class Content(Protocol):
    """What a checkpoint holds of a model: its parameters, or its adapters."""

    def sharded_state_dict(self, absent: Mapping[str, Tensor]) -> dict[str, Any]:
        """Megatron's sharded objects, without the parameters `absent`."""

    def load_state_dict(self, states: Mapping[str, Any], absent: Mapping[str, Tensor]) -> None:
        """Take over what `sharded_state_dict` described, and the values of `absent`."""


@dataclass(frozen=True, slots=True)
class Training:
    """Gradient buffers (of each chunk), optimizer and learning-rate schedule of one model."""

    ddp: list[DistributedDataParallel]
    optimizer: MegatronOptimizer
    scheduler: OptimizerParamScheduler
    settings: OptimizerSettings

    @classmethod
    def of(cls, model: ModelChunks, settings: OptimizerSettings, dtype: torch.dtype) -> Training:
        """Make `model` trainable."""
        distributed = settings.use_distributed_optimizer
        ddp_config = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=distributed)
        ddp = [DistributedDataParallel(chunk.config, ddp_config, chunk) for chunk in model.chunks]
        for chunk in ddp:
            _count_padding(chunk)
        optimizer = build_optimizer(ddp, settings, dtype)
        return cls(ddp, optimizer, build_scheduler(optimizer, settings), settings)

    def restore(self, optimizer: dict[Any, Any], scheduler: dict[str, Any]) -> None:
        """Take over what a checkpoint holds."""
        self.optimizer.load_state_dict(optimizer)
        self.scheduler.num_steps = 0
        self.scheduler.load_state_dict(scheduler)


def _count_padding(ddp: DistributedDataParallel) -> None:
    """Let the optimizer's state of a gradient buffer with several parts include the padding between them.

    Megatron 0.16 leaves the padding out when it gathers the state, but looks parameters up at their places with it: a
    checkpoint would hold shifted state. A tied embedding on its own pipeline stage is a part of its own.
    """
    for buffer in [*ddp.buffers, *ddp.expert_parallel_buffers]:
        if len(buffer.buckets) > 1:
            for bucket in buffer.buckets:
                bucket.numel_unpadded = bucket.grad_data.numel()
            buffer.numel_unpadded = buffer.numel


def write_checkpoint(
    directory: Path,
    model: Content,
    training: Training | None,
    *,
    iteration: int,
    extra: dict[str, Any],
    writes: DeferredWrites | None = None,
) -> None:
    """Write the model, RNG state, and where given what training adds, into `directory` (created if absent).

    With `writes`, data files are left there for later.

    Raises:
        TypeError: `extra` holds something that could not be read back safely.
    """
    state.require_plain(extra)
    directory.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"model": model.sharded_state_dict({})}
    if training is not None:
        content["optimizer"], _ = state.optimizer_state(training.optimizer, content["model"], loading=False)
        content["scheduler"] = training.scheduler.state_dict()
    content |= {
        "rng": state.rng_object(state.get_rng_state()),
        "world": state.world_shape(),
        "iteration": iteration,
        "extra": extra,
    }
    state.save_state(directory, content, writes)


def read_checkpoint(
    directory: Path, model: Content, training: Training | None, *, absent: Mapping[str, Tensor]
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
    template: dict[str, Any] = {"model": model.sharded_state_dict(absent)}
    weights: dict[Any, Any] = {}
    if training is not None:
        if "scheduler" not in common:
            raise ValueError(f"{directory} holds weights but no optimizer state; load it with optimizer=False")
        template["optimizer"], plain = state.optimizer_state(training.optimizer, template["model"], loading=True)
        stored = DcpReader(directory).keys()
        weights, template["optimizer"] = state.locate_main_parameters(template["optimizer"], stored)
        if common.get("world") == state.world_shape():
            template["rng"] = state.rng_object({})
        else:
            logger.warning("%s was saved under %s: RNG state is seeded afresh", directory, common.get("world"))
    loaded = state.load_state(directory, template)
    if weights:
        loaded["optimizer"] = merge(
            loaded["optimizer"], state.load_state(directory, {"optimizer": weights})["optimizer"]
        )
    model.load_state_dict(loaded["model"], absent)
    if training is not None:
        tensors = state.only_tensors(loaded["optimizer"])
        training.restore(state.with_steps(plain, tensors, loaded["iteration"]), loaded["scheduler"])
        if "rng" in template:
            state.set_rng_state(loaded["rng"])
    return loaded
