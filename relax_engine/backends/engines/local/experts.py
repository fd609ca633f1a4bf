"""A mixture of experts in the place of a layer's MLP.

What lives here: adding up what the experts of each row say. What does not: choosing them
(`relax_engine.backends.routing`), reading and fusing the weights (`weights.py`). A row's result depends on that row
alone; rows of the same expert share its matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relax_engine.backends.engines.local.linear import Linear, round_rows
from relax_engine.backends.routing import choose_experts, expert_scores, expert_weights
from relax_engine.checkpoint.model_spec import ExpertSpec


@dataclass(frozen=True, slots=True)
class Expert:
    """A SwiGLU MLP: the fused gate and up projections, and down."""

    gate_up: Linear
    down: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, hidden]` to `[rows, hidden]` in new memory."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of one layer, and the shared one that every row sees, times a sigmoid gate where there is one.

    `router` is float32 `[experts, hidden]`, `bias` float32 `[experts]`, `shared_gate` float32 `[1, hidden]`.
    """

    rule: ExpertSpec
    router: Tensor
    bias: Tensor | None
    experts: Sequence[Expert]
    shared: Expert | None
    shared_gate: Tensor | None

    def __call__(self, h: Tensor, note: Callable[[Tensor], None] | None = None) -> Tensor:
        """Normalised hidden states `[rows, hidden]` to what the layer adds to them, in new memory.

        `note` is told the chosen experts, `[rows, top_k]`.
        """
        wide = h.float()
        scores = expert_scores(wide @ self.router.t(), self.rule)
        chosen = choose_experts(scores, self.rule, self.bias)
        if note is not None:
            note(chosen)
        weights = expert_weights(scores, chosen, self.rule)
        output = self._of_shared(h, wide)
        order = chosen.flatten().argsort(stable=True)
        rows, scales = order // self.rule.top_k, weights.flatten().index_select(0, order).to(h.dtype)[:, None]
        counts, start = chosen.flatten().bincount(minlength=len(self.experts)).tolist(), 0
        for expert, count in zip(self.experts, counts, strict=True):
            if count:
                own = rows[start : start + count]
                x = F.pad(h.index_select(0, own), (0, 0, 0, round_rows(count) - count))
                output.index_add_(0, own, expert(x)[:count].mul_(scales[start : start + count]))
                start += count
        return output

    def _of_shared(self, h: Tensor, wide: Tensor) -> Tensor:
        if self.shared is None:
            return torch.zeros_like(h)
        output = self.shared(h)
        if self.shared_gate is not None:
            output.mul_(torch.sigmoid(wide @ self.shared_gate.t()).to(h.dtype))
        return output
