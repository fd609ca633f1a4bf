"""The supervised loss beside the policy losses.

What lives here: maximum likelihood of the unmasked tokens. What does not: which tokens are
unmasked (the loss mask covers assistant turns only and is made with the data).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from relax_engine.algorithms.objective import LossInputs

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SftLoss:
    """`-sum(loss_weights * log_probs)`: negative log-likelihood, in nats."""

    columns: ClassVar[tuple[str, ...]] = ("loss_masks", "loss_weights")
    needs_entropy: ClassVar[bool] = False

    def __call__(
        self, log_probs: Tensor, entropy: Tensor | None, inputs: LossInputs
    ) -> tuple[Tensor, dict[str, Tensor]]:
        masked = inputs.columns["loss_masks"] == 0
        weights = inputs.columns["loss_weights"]
        loss = -(weights * log_probs.masked_fill(masked, 0.0)).sum()
        metrics = {
            "loss": loss.detach(),
            "loss_weight": weights.sum(),
            "loss_tokens/sum": (~masked).sum().to(weights.dtype),
        }
        return loss, metrics


def make_sft_loss() -> SftLoss:
    """The loss of `--loss-type sft`; make its weights with `loss_weights(..., how="token_mean")`."""
    return SftLoss()
