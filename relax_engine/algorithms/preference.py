"""Direct preference optimisation (DPO): the better of two answers should gain on the worse one.

What lives here: the loss of pairs, and its exact form as a weighted sum over tokens. What does not: which answers are
pairs (the data), and reference log-probs.

The loss of a pair is no sum over tokens, but its gradient is: with the margin known before the step, every token's
log-prob has a fixed weight. So pairs may be spread over micro-batches and ranks as any other rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from relax_engine.algorithms.objective import LossInputs
from relax_engine.algorithms.reduction import row_ids, row_sums

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class PairTerms:
    """Of each pair, `[pairs]`: the loss, and beta times the log-ratio to the reference of either answer."""

    loss: Tensor
    chosen_rewards: Tensor
    rejected_rewards: Tensor


def dpo_loss(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, *, beta: float) -> PairTerms:
    """`-log sigmoid(beta ((chosen - ref_chosen) - (rejected - ref_rejected)))` (arXiv 2305.18290, eq. 7).

    Args:
        chosen: Log-probs of the better answers, summed over their tokens, `[pairs]`, with gradient.
        rejected: Of the worse answers.
        ref_chosen: Of the better answers under the reference; 0 for none.
        ref_rejected: Of the worse answers under the reference; 0 for none.
        beta: Strength of the pull towards the reference, above 0.
    """
    from torch.nn.functional import logsigmoid

    better, worse = beta * (chosen - ref_chosen), beta * (rejected - ref_rejected)
    return PairTerms(-logsigmoid(better - worse), better.detach(), worse.detach())


def preference_columns(
    log_probs: Tensor, ref_log_probs: Tensor | None, mask: Tensor, offsets: Tensor, *, beta: float
) -> dict[str, Tensor]:
    """Per-token columns with which `PreferenceLoss` gives value and gradient of the mean DPO loss times the pairs.

    Args:
        log_probs: `[R]`, of the weights before the step; rows `2i` and `2i + 1` are the better and the worse answer.
        ref_log_probs: `[R]`; None for no reference.
        mask: bool `[R]`.
        offsets: int64 `[rows + 1]`.
        beta: See `dpo_loss`.

    Returns:
        f32 `[R]` each: `loss_weights` (minus the derivative of a pair's loss by the token's log-prob), and, at the
        first token of a better answer and 0 elsewhere, `pair_loss`, `pair_margin` and `pair_right`.

    Raises:
        ValueError: an odd number of rows, or an answer without a token.
    """
    import torch

    lengths = offsets.diff()
    if lengths.numel() % 2 or bool((lengths == 0).any()):
        raise ValueError(
            f"DPO needs pairs of rows with at least one answer token each, got rows of {lengths.tolist()[:16]}"
        )
    kept = mask.to(log_probs.dtype)
    reference = torch.zeros_like(log_probs) if ref_log_probs is None else ref_log_probs
    sums, ref_sums = (row_sums(values * kept, offsets) for values in (log_probs.detach(), reference))
    better = sums[0::2].clone().requires_grad_()
    terms = dpo_loss(better, sums[1::2], ref_sums[0::2], ref_sums[1::2], beta=beta)
    (slope,) = torch.autograd.grad(terms.loss.sum(), better)
    of_row = torch.stack([-slope, slope], dim=1).flatten()
    margin = terms.chosen_rewards - terms.rejected_rewards
    columns = {"loss_weights": of_row[row_ids(offsets)] * kept}
    values = {"pair_loss": terms.loss.detach(), "pair_margin": margin, "pair_right": (margin > 0).to(margin.dtype)}
    for name, value in values.items():
        column = torch.zeros_like(log_probs)
        column[offsets[:-1][0::2]] = value
        columns[name] = column
    return columns


@dataclass(frozen=True, slots=True)
class PreferenceLoss:
    """The loss of `--loss-type dpo` for columns made by `preference_columns`, as a sum over pairs.

    Metrics per pair: `loss`, `dpo_margin` (of beta times the log-ratios) and `dpo_accuracy` (share of margins above 0).
    """

    columns: ClassVar[tuple[str, ...]] = ("loss_masks", "loss_weights", "pair_loss", "pair_margin", "pair_right")
    needs_entropy: ClassVar[bool] = False

    def __call__(
        self, log_probs: Tensor, entropy: Tensor | None, inputs: LossInputs
    ) -> tuple[Tensor, dict[str, Tensor]]:
        columns = inputs.columns
        masked = columns["loss_masks"] == 0
        weighted = (columns["loss_weights"] * log_probs.masked_fill(masked, 0.0)).sum()
        loss = columns["pair_loss"].sum() - (weighted - weighted.detach())
        return loss, {
            "loss": loss.detach(),
            "dpo_margin": columns["pair_margin"].sum(),
            "dpo_accuracy": columns["pair_right"].sum(),
            "loss_tokens/sum": (~masked).sum().to(loss.dtype),
        }
