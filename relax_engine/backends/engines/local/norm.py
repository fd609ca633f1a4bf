"""Root-mean-square norms of what a product gives; those before a product are folded into it (`weights.py`)."""

from __future__ import annotations

from torch import Tensor

from relax_engine.backends.engines.local.linear import Linear


def normalised(x: Tensor, epsilon: float) -> Tensor:
    """`x` over its root mean square in the last dimension, in new memory of its dtype."""
    wide = x.float()
    return (wide * wide.square().mean(dim=-1, keepdim=True).add_(epsilon).rsqrt_()).to(x.dtype)


class NormedLinear:
    """A product whose result is normalised and weighted (the norms behind attention and MLP of GLM-4)."""

    def __init__(self, linear: Linear, weight: Tensor, epsilon: float) -> None:
        self._linear, self._weight, self._epsilon = linear, weight, epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return normalised(self._linear(x), self._epsilon).mul_(self._weight)
