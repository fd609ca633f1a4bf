"""Moving Hugging Face tensors in and out of a model, one at a time.

What lives here: the collective gather of a parameter from the ranks that share it, and copying into them. What does
not: names and layouts (`relax_engine.checkpoint.mapping`), files (`relax_engine.checkpoint.hf_reader`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from relax_engine.backends.megatron.chunks import EMBEDDING, NamedParameters
from relax_engine.backends.megatron.device import compute_device
from relax_engine.checkpoint.mapping import Assembler, Layout, ParameterMapping, WeightMap


def hf_names_here(model: NamedParameters, weights: WeightMap) -> set[str]:
    """The Hugging Face tensors that this rank's parameters are made of."""
    return {hf_name for name in _held(model) for hf_name in weights.parameters[name].hf_names}


def _held(model: NamedParameters) -> dict[str, Tensor]:
    """The parameters to fill, by name; a copy of a tied embedding under the embedding's."""
    held: dict[str, Tensor] = dict(model.named_parameters())
    if model.tied_copy is not None:
        held[EMBEDDING] = model.tied_copy
    return held


@torch.no_grad()
def load_tensors(model: NamedParameters, weights: WeightMap, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Fill the model from Hugging Face tensors in any order; each rank keeps what it holds, and its slices of it.

    Raises:
        WeightMappingError: a tensor is missing, unexpected or of the wrong shape. The model is then
            partly overwritten.
    """
    parameters = _held(model)
    assembler = Assembler(weights, parameters)
    for hf_name, tensor in tensors:
        complete = assembler.add(hf_name, tensor)
        if complete is not None:
            name, full = complete
            group = slices_of(weights.parameters[name])
            parameters[name].copy_(weights.shard(name, full, group.rank(), group.size()))
    assembler.finish()


@torch.no_grad()
def named_hf_tensors(model: NamedParameters, weights: WeightMap) -> Iterator[tuple[str, Tensor]]:
    """The model's weights as full, contiguous Hugging Face tensors. Collective over all ranks of the model.

    Every rank yields the same names and values. A tensor may share memory with the model: use it
    before the next optimizer step.
    """
    parameters = model.named_parameters()
    stages = _stages(parameters)
    dtype = next(iter(parameters.values())).dtype
    for name, mapping in weights.parameters.items():
        kept = torch.float32 if mapping.wide else dtype
        full = _gather(parameters.get(name), weights, mapping, kept) if name in stages.own else None
        if stages.size > 1:
            if full is None:
                full = torch.empty(mapping.shape, dtype=kept, device=compute_device())
            dist.broadcast(full, stages.holder[name], group=parallel_state.get_pipeline_model_parallel_group())
        assert full is not None
        for hf_name, tensor in weights.split(name, full):
            yield hf_name, tensor.contiguous()


@dataclass(frozen=True, slots=True)
class _Stages:
    """Which pipeline rank (by global rank) has which parameters; `own` are those of this rank's stage."""

    size: int
    own: set[str]
    holder: dict[str, int]


def _stages(parameters: dict[str, torch.nn.Parameter]) -> _Stages:
    """Ask all ranks of the pipeline, and those that share its experts."""
    experts = parallel_state.get_expert_model_parallel_group()
    held: list[list[str]] = [[] for _ in range(experts.size())]
    if experts.size() == 1:
        held = [list(parameters)]
    else:
        dist.all_gather_object(held, list(parameters), group=experts)
    own = {name for names in held for name in names}
    pipeline = parallel_state.get_pipeline_model_parallel_group()
    if pipeline.size() == 1:
        return _Stages(1, own, {})
    stages: list[list[str]] = [[] for _ in range(pipeline.size())]
    dist.all_gather_object(stages, sorted(own), group=pipeline)
    ranks = dist.get_process_group_ranks(pipeline)
    return _Stages(
        pipeline.size(), own, {name: rank for rank, names in zip(ranks, stages, strict=True) for name in names}
    )


def slices_of(mapping: ParameterMapping) -> dist.ProcessGroup:
    """The ranks of this one's share that hold slices of the parameter."""
    if mapping.expert is None:
        return parallel_state.get_tensor_model_parallel_group()
    return parallel_state.get_expert_tensor_parallel_group()


def _gather(parameter: Tensor | None, weights: WeightMap, mapping: ParameterMapping, dtype: torch.dtype) -> Tensor:
    """The full parameter, of which this rank holds a slice, or another rank of its expert-parallel group does."""
    full = None if parameter is None else _whole(parameter.detach(), weights, mapping)
    experts = parallel_state.get_expert_model_parallel_group()
    if mapping.expert is not None and experts.size() > 1:
        assert weights.spec.experts is not None
        on_each = weights.spec.experts.count // experts.size()
        if full is None:
            full = torch.empty(mapping.shape, dtype=dtype, device=compute_device())
        source = dist.get_process_group_ranks(experts)[mapping.expert // on_each]
        dist.broadcast(full, source, group=experts)
    assert full is not None
    return full


def _whole(local: Tensor, weights: WeightMap, mapping: ParameterMapping) -> Tensor:
    group = slices_of(mapping)
    if group.size() == 1 or mapping.layout is Layout.REPLICATED:
        return local
    shards = [torch.empty_like(local) for _ in range(group.size())]
    dist.all_gather(shards, local.contiguous(), group=group)
    return weights.unshard(mapping.name, shards)
