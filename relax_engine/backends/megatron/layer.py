"""Transformer layers that differ from Megatron's by more than their parts.

What lives here: norms behind attention and MLP, and a bias behind attention. What does not: which layer a model has
(`spec.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megatron.core.tensor_parallel import RowParallelLinear
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import Tensor

from relax_engine.backends.megatron.rms_norm import RMSNorm

AddToResidual = Callable[[tuple[Tensor, Tensor | None], Tensor, float], Tensor]


class SandwichLayer(TransformerLayer):
    """A layer that normalises what attention and MLP say before it is added to the hidden states (GLM-4)."""

    self_attn_bda: Any
    mlp_bda: Any

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.post_self_attn_layernorm = RMSNorm(config, config.hidden_size, config.layernorm_epsilon)
        self.post_mlp_layernorm = RMSNorm(config, config.hidden_size, config.layernorm_epsilon)
        self.self_attn_bda = _normalised(self.self_attn_bda, self.post_self_attn_layernorm)
        self.mlp_bda = _normalised(self.mlp_bda, self.post_mlp_layernorm)


def _normalised(make: Callable[[bool, bool], AddToResidual], norm: RMSNorm) -> Callable[[bool, bool], AddToResidual]:
    """Megatron's addition to the residual, of a normalised output without bias."""

    def made(training: bool, fused: bool) -> AddToResidual:
        add = make(training, fused)
        return lambda output, residual, dropout: add((norm(output[0]), None), residual, dropout)

    return made


class OutputWithBias(RowParallelLinear):
    """The projection behind attention, with a bias also where other layers have none."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"bias": True})
