"""Root-mean-square norm as a module of Megatron's layers."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer import TransformerConfig
from torch import Tensor

from relax_engine.backends.megatron.fused import rms_norm


class RMSNorm(torch.nn.Module):
    """Root-mean-square norm over the last dimension.

    Under sequence parallelism each rank sees its share of the tokens, so the weight is marked for
    Megatron's gradient all-reduce over tensor-parallel ranks.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """The normalised `x`, of its shape and dtype."""
        return rms_norm(x, self.weight, self.eps)
