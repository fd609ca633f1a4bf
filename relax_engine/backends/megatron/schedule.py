"""Running micro-batches through the pipeline, and telling all of its ranks what the last one found.

What lives here: Megatron's schedules behind one call, and the broadcasts. What does not: what a step computes
(`micro_batch.py`), the optimizer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

Rows = TypeVar("Rows")
Step = Callable[[Iterator[Any], torch.nn.Module], tuple[Tensor, Callable[..., Any]]]


def is_last_stage() -> bool:
    """Whether this rank has the end of the model, and so its output."""
    return parallel_state.is_pipeline_last_stage()


def whole_rounds(count: int) -> int:
    """`count` micro-batches rounded up to what the schedule takes: interleaved stages work in whole rounds."""
    if parallel_state.get_virtual_pipeline_model_parallel_world_size() is None:
        return count
    stages = parallel_state.get_pipeline_model_parallel_world_size()
    return -(-max(count, 1) // stages) * stages


def run(step: Step, chunks: Sequence[torch.nn.Module], micro_batches: Sequence[Any], *, backward: bool) -> list[Any]:
    """Run every micro-batch through all chunks of the model.

    Args:
        step: takes the next micro-batch from an iterator and returns a chunk's output, and the function that makes of
            the last chunk's output `(loss, token count, data)` or, without `backward`, data.

    Returns:
        The data of each micro-batch, on the last stage; an empty list elsewhere.
    """
    several = len(chunks) > 1
    data: list[Any] = get_forward_backward_func()(
        forward_step_func=step if backward else functools.partial(_without_loss, step),
        data_iterator=[iter(micro_batches) for _ in chunks] if several else iter(micro_batches),
        model=list(chunks),
        num_microbatches=len(micro_batches),
        seq_length=1,
        micro_batch_size=1,
        forward_only=not backward,
        collect_non_loss_data=not backward,
    )
    return data


def _without_loss(step: Step, data: Iterator[Any], chunk: torch.nn.Module) -> tuple[Tensor, Callable[..., Any]]:
    output, collect = step(data, chunk)
    return output, lambda result, non_loss_data: collect(result)


def tensor_of_last_stage(tensor: Tensor) -> Tensor:
    """The last stage's `tensor` on every rank of the pipeline; elsewhere one of its shape is overwritten."""
    group = parallel_state.get_pipeline_model_parallel_group()
    if group.size() > 1:
        dist.broadcast(tensor, parallel_state.get_pipeline_model_parallel_last_rank(), group=group)
    return tensor


def value_of_last_stage(value: Any) -> Any:
    """The last stage's plain `value` on every rank of the pipeline."""
    group = parallel_state.get_pipeline_model_parallel_group()
    if group.size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, parallel_state.get_pipeline_model_parallel_last_rank(), group=group)
    return box[0]
