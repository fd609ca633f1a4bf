"""Moving Hugging Face tensors in and out of a model, one at a time.

What lives here: the collective gather of tensor-parallel slices, and copying into them. What does not:
names and layouts (`relax_engine.checkpoint.mapping`), files (`relax_engine.checkpoint.hf_reader`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from relax_engine.backends.megatron.model import ResponseModel
from relax_engine.checkpoint.mapping import Assembler, Layout, WeightMap


@torch.no_grad()
def load_tensors(model: ResponseModel, weights: WeightMap, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Fill the model from Hugging Face tensors in any order; each rank keeps its slices.

    Raises:
        WeightMappingError: a tensor is missing, unexpected or of the wrong shape. The model is then
            partly overwritten.
    """
    parameters = dict(model.named_parameters())
    rank = parallel_state.get_tensor_model_parallel_rank()
    size = parallel_state.get_tensor_model_parallel_world_size()
    assembler = Assembler(weights)
    for hf_name, tensor in tensors:
        complete = assembler.add(hf_name, tensor)
        if complete is not None:
            name, full = complete
            parameters[name].copy_(weights.shard(name, full, rank, size))
    assembler.finish()


@torch.no_grad()
def named_hf_tensors(model: ResponseModel, weights: WeightMap) -> Iterator[tuple[str, Tensor]]:
    """The model's weights as full, contiguous Hugging Face tensors. Collective over tensor-parallel ranks.

    Every rank yields the same names and values. A tensor may share memory with the model: use it
    before the next optimizer step.
    """
    parameters = dict(model.named_parameters())
    for name in weights.parameters:
        full = _gather(parameters[name], weights, name)
        for hf_name, tensor in weights.split(name, full):
            yield hf_name, tensor.contiguous()


def _gather(parameter: Tensor, weights: WeightMap, name: str) -> Tensor:
    size = parallel_state.get_tensor_model_parallel_world_size()
    local = parameter.detach()
    if size == 1 or weights.parameters[name].layout is Layout.REPLICATED:
        return local
    shards = [torch.empty_like(local) for _ in range(size)]
    dist.all_gather(shards, local.contiguous(), group=parallel_state.get_tensor_model_parallel_group())
    return weights.unshard(name, shards)
