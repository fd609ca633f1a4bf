"""A user's whole loss, in place of the algorithm's: `--loss-type custom_loss`.

What lives here: the contract of `--custom-loss-function-path`. What does not: advantages, which are made as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relax_engine.algorithms.objective import LossInputs, PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class CustomLoss:
    """Calls `function(args, batch, log_probs, sum_of_sample_mean)`, which returns `(loss, metrics)`.

    `batch` has the columns of the policy loss (`advantages`, `rollout_log_probs`, `loss_masks`, ..., each `[R]`),
    `response_lengths` and `total_lengths` (lists of integers), and `entropy` `[R]` with `--entropy-coef`.
    `log_probs` `[R]` has the gradient. `sum_of_sample_mean` turns `[R]` into a 0-d sum under the token weights, which
    the engine divides by the size of the global batch; a loss must be made of such sums, so that it does not depend on
    how the batch is divided. Metrics are 0-d tensors of the same kind.
    """

    policy: PolicyLoss
    function: Callable[..., Any]
    args: Any

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that every call needs."""
        return self.policy.columns

    @property
    def needs_entropy(self) -> bool:
        """Whether the caller must compute the entropy of the sampling distribution."""
        return self.policy.needs_entropy

    def __call__(
        self, log_probs: Tensor, entropy: Tensor | None, inputs: LossInputs
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The user's loss and metrics, with `loss_tokens/sum`.

        Raises:
            TypeError: the function returned something else.
        """
        masked = inputs.columns["loss_masks"] == 0
        weights = inputs.columns["loss_weights"]

        def sum_of_sample_mean(values: Tensor) -> Tensor:
            return (weights * values.masked_fill(masked, 0.0)).sum()

        batch: dict[str, Any] = {**inputs.columns, "response_lengths": inputs.offsets.diff().tolist()}
        if inputs.total_lengths is not None:
            batch["total_lengths"] = inputs.total_lengths.tolist()
        if entropy is not None:
            batch["entropy"] = entropy
        result = self.function(self.args, batch, log_probs, sum_of_sample_mean)
        if not isinstance(result, tuple) or len(result) != 2:
            name = getattr(self.function, "__name__", type(self.function).__name__)
            raise TypeError(f"--custom-loss-function-path: {name} must return (loss, metrics), got {result!r:.80}")
        loss, metrics = result
        counts = {"loss_tokens/sum": (~masked).sum().to(weights.dtype)}
        return loss, {name: value.detach() for name, value in metrics.items()} | counts
