"""The critic's loss.

What lives here: the squared error of a value, with PPO's clip, and the loss function that a critic's
backend calls. What does not: returns (`returns`) and the critic itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from relax_engine.algorithms.objective import LossInputs
from relax_engine.algorithms.settings import AlgorithmSettings

if TYPE_CHECKING:
    from torch import Tensor


def value_error(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float) -> tuple[Tensor, Tensor]:
    """`max((v - R)^2, (clip(v, old - clip, old + clip) - R)^2)` per token, without a factor of 1/2.

    The clipped branch takes the gradient from values that have already moved by `clip` towards the
    return. Source: the reference implementation of PPO (arXiv 1707.06347).

    Args:
        values: Any shape, with gradient.
        old_values: The values from which the returns were computed, same shape.
        returns: Same shape.
        clip: Largest step of a value.

    Returns:
        `(error, clipped)`; `clipped` is 1 where the clipped branch is the larger.
    """
    bounded = values.maximum(old_values - clip).minimum(old_values + clip)
    plain, clipped = (values - returns).square(), (bounded - returns).square()
    return plain.maximum(clipped), (clipped > plain).to(values.dtype)


@dataclass(frozen=True, slots=True)
class ValueLoss:
    """Loss of the critic: the sum of `loss_weights` times the clipped squared error.

    Called as a policy loss is, with values in the place of log-probs. Its column `values` holds the
    critic's values at the time of the advantages.
    """

    settings: AlgorithmSettings
    columns: ClassVar[tuple[str, ...]] = ("loss_masks", "loss_weights", "values", "returns")
    needs_entropy: ClassVar[bool] = False

    def __call__(self, values: Tensor, entropy: Tensor | None, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Weighted sum over the tokens of `inputs`, and additive metrics (see `objective`)."""
        masked = inputs.columns["loss_masks"] == 0
        weights = inputs.columns["loss_weights"]
        current = values.masked_fill(masked, 0.0)
        old = inputs.columns["values"].masked_fill(masked, 0.0)
        returns = inputs.columns["returns"].masked_fill(masked, 0.0)
        error, clipped = value_error(current, old, returns, clip=self.settings.value_clip)
        loss = (weights * error).sum()
        metrics = {
            "value_loss": loss.detach(),
            "value_clipfrac": (weights * clipped).sum(),
            "values": (weights * current.detach()).sum(),
            "returns": (weights * returns).sum(),
            "loss_weight": weights.sum(),
            "loss_tokens/sum": (~masked).sum().to(weights.dtype),
        }
        return loss, metrics


def make_value_loss(settings: AlgorithmSettings) -> ValueLoss:
    """The loss of the critic role."""
    return ValueLoss(settings)
