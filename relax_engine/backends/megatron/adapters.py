"""Low-rank adapters (LoRA) beside Megatron's parallel linear layers; the base stays as it is.

What lives here: the module that a linear layer gets, and all of a model's as one. What does not: names and merging
(`relax_engine.checkpoint.adapters`), files.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.tensor_parallel import mappings
from torch import Tensor

from relax_engine.backends.megatron.chunks import ModelChunks
from relax_engine.backends.megatron.device import compute_device
from relax_engine.backends.megatron.settings import BackendSettings
from relax_engine.backends.megatron.weights import slices_of
from relax_engine.checkpoint.adapters import AdapterMap, AdapterRecord, adapter_names
from relax_engine.checkpoint.mapping import Layout, ParameterMapping, WeightMap


class Adapter(torch.nn.Module):
    """`scale * B A dropout(x)` of a linear layer, cut over the ranks that share the layer.

    What crosses ranks is `A x`, of `rank` numbers a token. Inside experts, whose tokens Megatron's dispatcher adds up
    over the ranks, only the gradient of the half that every rank has does.
    """

    def __init__(
        self,
        a: Tensor,
        b: Tensor,
        *,
        of_columns: bool,
        part_of_row: Tensor | None,
        scale: float,
        dropout: float,
        base: Tensor,
        sequence_parallel: bool,
        expert: bool,
    ) -> None:
        """
        Args:
            a, b: this rank's share of both halves, as `AdapterMap` describes them.
            of_columns: whether the layer is cut by columns (`RowParallelLinear`), else by rows.
            part_of_row: the part of the fused layer that each row of `b` belongs to, where `b` is not stacked.
            base: this rank's share of the layer's weight.
        """
        super().__init__()
        self.a, self.b = torch.nn.Parameter(a), torch.nn.Parameter(b)
        self._of_columns, self._scale, self._dropout = of_columns, scale, dropout
        self._sequence_parallel, self._expert = sequence_parallel and not expert, expert
        cut, whole = (self.a, self.b) if of_columns else (self.b, self.a)
        for parameter in (self.a, self.b):
            parameter.allreduce = getattr(base, "allreduce", True)  # type: ignore[attr-defined]
            parameter.sequence_parallel = self._sequence_parallel and parameter is whole  # type: ignore[attr-defined]
        cut.tensor_model_parallel = getattr(base, "tensor_model_parallel", False)  # type: ignore[attr-defined]
        several = part_of_row is not None and a.dim() == 3 and len(a) > 1
        self._parts = F.one_hot(part_of_row, len(a)).to(b) if several and part_of_row is not None else None

    def forward(self, x: Tensor) -> Tensor:
        """What the layer adds for its input `[tokens, ..., in]`: `[tokens, ..., out]`."""
        if self._dropout and self.training:
            x = self._dropped(x)
        a, b = self.a, self.b
        if self._expert:
            group = parallel_state.get_expert_tensor_parallel_group()
            if self._of_columns:
                b = mappings.copy_to_tensor_model_parallel_region(b, group=group)
            else:
                a = mappings.copy_to_tensor_model_parallel_region(a, group=group)
        low = F.linear(x, a.flatten(0, -2))
        if not self._expert:
            low = self._exchanged(low)
        return self._raised(low, b) * self._scale

    def _exchanged(self, low: Tensor) -> Tensor:
        """`A x` as the other half needs it, and its gradient as this half does."""
        if self._of_columns and self._sequence_parallel:
            return mappings.reduce_scatter_to_sequence_parallel_region(low)
        if self._of_columns:
            return mappings.reduce_from_tensor_model_parallel_region(low)
        if self._sequence_parallel:
            return mappings.gather_from_sequence_parallel_region(low)
        return mappings.copy_to_tensor_model_parallel_region(low)

    def _raised(self, low: Tensor, b: Tensor) -> Tensor:
        """`[..., parts * rank]` to `[..., out]`."""
        if b.dim() == 3:
            sources = low.chunk(len(self.a), -1) * (len(b) // len(self.a))
            return torch.cat([F.linear(x, part) for x, part in zip(sources, b, strict=True)], dim=-1)
        if self._parts is not None:
            b = (self._parts[:, :, None] * b[:, None, :]).flatten(1)
        return F.linear(low, b)

    def _dropped(self, x: Tensor) -> Tensor:
        """Ranks that hold the same `x` drop the same of it, others differ."""
        if self._of_columns or self._sequence_parallel or self._expert:
            with tensor_parallel.get_cuda_rng_tracker().fork():
                return F.dropout(x, self._dropout)
        return F.dropout(x, self._dropout)


@dataclass(frozen=True, slots=True)
class Adapters:
    """The adapters on this rank, by their names in the whole model. Their layers' own parameters are frozen."""

    map: AdapterMap
    modules: dict[str, Adapter] = field(default_factory=dict)
    """By the name of the weight beside which they are."""
    tied_copy: None = None

    def named_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Parameters by their names in the whole model."""
        return {
            name: parameter
            for weight, module in self.modules.items()
            for name, parameter in zip(adapter_names(weight), (module.a, module.b), strict=True)
        }

    @torch.no_grad()
    def reset(self, seed: int) -> None:
        """The initial adapters, which add nothing: B is zero, A uniform within `1 / sqrt(in)`, as PEFT's.

        The values depend on the seed and the name alone, so that every layout starts with the same.
        """
        for name, parameter in self.named_parameters().items():
            mapping = self.map.parameters[name]
            if name.endswith(".b"):
                parameter.zero_()
                continue
            digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
            full = torch.rand(mapping.shape, generator=generator) * 2 - 1
            group = slices_of(mapping)
            parameter.copy_(self.map.shard(name, full * mapping.shape[-1] ** -0.5, group.rank(), group.size()))

    def sharded_state_dict(self, absent: Mapping[str, Tensor]) -> dict[str, Any]:
        """Megatron's sharded objects, under the parameters' own names; none may be absent."""
        assert not absent
        return {name: _sharded(self.map.parameters[name], tensor) for name, tensor in self.named_parameters().items()}

    @torch.no_grad()
    def load_state_dict(self, states: Mapping[str, Any], absent: Mapping[str, Tensor]) -> None:
        """Take over what `sharded_state_dict` described."""
        assert not absent
        for name, parameter in self.named_parameters().items():
            parameter.copy_(states[name])

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """No dropout inside the block."""
        for module in self.modules.values():
            module.eval()
        try:
            yield
        finally:
            for module in self.modules.values():
                module.train()


def _sharded(mapping: ParameterMapping, local: Tensor) -> ShardedTensor:
    group = slices_of(mapping)
    axis = {Layout.COLUMNS: 1, Layout.REPLICATED: None}.get(mapping.layout, 0)
    cut = () if axis is None or group.size() == 1 else ((axis, group.rank(), group.size()),)
    copy = (
        parallel_state.get_data_parallel_rank(with_context_parallel=True)
        if mapping.expert is None
        else parallel_state.get_expert_data_parallel_rank()
    )
    replica = (0, 0 if cut else group.rank(), copy)
    return ShardedTensor.from_rank_offsets(mapping.name, local, *cut, replica_id=replica)


def attach(model: ModelChunks, weights: WeightMap, settings: BackendSettings) -> Adapters | None:
    """Freeze the model and give its layers adapters, if the settings ask for some.

    Where whole layers are recomputed, their input has to need a gradient.
    """
    if settings.adapters is None:
        return None
    adapters, dropout = AdapterMap(weights, settings.adapters.shape), settings.adapters.dropout
    attached = Adapters(adapters)
    recompute = settings.recompute.granularity == "full"
    for chunk in model.chunks:
        chunk.requires_grad_(False)
        if recompute and chunk.pre_process:
            chunk.embedding.register_forward_hook(_need_gradient)
    for weight, module in model.modules(adapters.adapted):
        attached.modules[weight] = module.adapter = _adapter(adapters, weight, module, dropout)
        module.register_forward_hook(_add)
    model.note_parameters()
    attached.reset(settings.seed)
    return attached


def _adapter(adapters: AdapterMap, weight: str, module: Any, dropout: float) -> Adapter:
    base = adapters.adapted[weight]
    names = adapter_names(weight)
    group = slices_of(base)
    locals_ = []
    for name in names:
        shell = torch.empty(adapters.parameters[name].shape, device="meta")
        shape = adapters.shard(name, shell, group.rank(), group.size()).shape
        locals_.append(torch.empty(shape, dtype=module.weight.dtype, device=compute_device()))
    rows = None
    if base.layout is not Layout.COLUMNS and len(adapters.parameters[names[1]].shape) == 2:
        parts = adapters.part_of_row(names[1])
        rows = adapters.shard(names[1], parts, group.rank(), group.size())[:, 0].to(compute_device())
    return Adapter(
        *locals_,
        of_columns=base.layout is Layout.COLUMNS,
        part_of_row=rows,
        scale=adapters.shape.scale,
        dropout=dropout,
        base=module.weight,
        sequence_parallel=module.config.sequence_parallel,
        expert=base.expert is not None,
    )


def _add(module: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    """A linear layer's forward hook."""
    return output[0] + module.adapter(inputs[0]), output[1]


def _need_gradient(_module: Any, _inputs: Any, output: Tensor) -> Tensor:
    """The embedding's forward hook: recomputation gives gradients to what its input leads to only."""
    return output.requires_grad_() if torch.is_grad_enabled() else output


def require_same(
    adapters: Adapters | None, record: AdapterRecord | None, place: str | Path, *, whole_training: bool
) -> None:
    """Refuse a checkpoint of other adapters, and one of whole weights that are trained on with adapters.

    Raises:
        ValueError: names both, or the flag to give it with.
    """
    own = None if adapters is None else adapters.map.shape
    if record is not None and record.shape != own:
        raise ValueError(f"{place} holds adapters, {record.shape}; this model has {own or 'none'}")
    if record is None and own is not None and whole_training:
        raise ValueError(
            f"{place} holds whole weights and their optimizer: to train adapters on them, give it as --ref-load "
            "instead of --load"
        )


def trained(model: ModelChunks, adapters: Adapters | None) -> Iterator[torch.nn.Parameter]:
    """The parameters that training changes."""
    return iter(adapters.named_parameters().values()) if adapters is not None else model.parameters()
