"""The process group and Megatron's parallel groups, shared by the models of one process.

What lives here: joining and leaving the world. What does not: which rank does what with its data.

Megatron's parallel state is global to a process, so several models in one process (an actor and its
reference) must have the same layout; the groups are destroyed when the last of them leaves.
"""

from __future__ import annotations

import datetime
import logging
import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel

from relax_engine.backends.megatron.device import communication_backend
from relax_engine.config.layout import ParallelLayout

logger = logging.getLogger(__name__)

JOIN_TIMEOUT = datetime.timedelta(minutes=10)


@dataclass(slots=True)
class _World:
    rank: int
    size: int
    layout: ParallelLayout
    members: int = 0


_current: _World | None = None


def join(rank: int, world_size: int, init_method: str, layout: ParallelLayout, seed: int) -> None:
    """Enter the world of `world_size` processes, or reuse it if this process is already in it.

    Every process of the world must call this with the same `init_method` (`tcp://host:port`, where
    rank 0 listens) within ten minutes. Seeds the parameter-initialisation RNGs with `seed`.

    Raises:
        RuntimeError: this process is already in a world of another shape.
        ValueError: the layout does not fit the world, or the devices' communication.
    """
    global _current
    layout.data_parallel(world_size)
    if communication_backend() == "gloo" and layout.expert > 1 and layout.experts_tensor > 1:
        raise ValueError(
            f"experts on {layout.expert} expert-parallel and {layout.experts_tensor} expert-tensor-parallel ranks "
            "exchange tensors of unequal sizes, which gloo does not: on CPUs use --expert-tensor-parallel-size 1"
        )
    wanted = _World(rank, world_size, layout)
    if _current is None:
        if world_size == 1:
            dist.init_process_group(communication_backend(), store=dist.HashStore(), rank=0, world_size=1)
        else:
            dist.init_process_group(
                communication_backend(), init_method, timeout=JOIN_TIMEOUT, rank=rank, world_size=world_size
            )
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tensor,
            pipeline_model_parallel_size=layout.pipeline,
            virtual_pipeline_model_parallel_size=layout.virtual if layout.virtual > 1 else None,
            context_parallel_size=layout.context,
            expert_model_parallel_size=layout.expert,
            expert_tensor_parallel_size=layout.experts_tensor,
        )
        _current = wanted
        logger.info("joined the training world as rank %d of %d, %s", rank, world_size, layout)
    elif (_current.rank, _current.size, _current.layout) != (rank, world_size, layout):
        raise RuntimeError(
            f"this process is rank {_current.rank} of {_current.size} with {_current.layout}; "
            f"a second model cannot be rank {rank} of {world_size} with {layout}"
        )
    _current.members += 1
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def leave() -> None:
    """Undo one `join`; the last one destroys the groups. Collective in that case."""
    global _current
    if _current is None:
        return
    _current.members -= 1
    if _current.members == 0:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
        _current = None
