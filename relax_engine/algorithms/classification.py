"""The loss of sequence classification: one set of logits per row, from the state at the end of the prompt.

What lives here: cross entropy over one label, and binary cross entropies over several. What does not: the head (the
backend's), and labels as text (`relax_engine.rollout.class_labels`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from relax_engine.algorithms.objective import LossInputs

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ClassificationLoss:
    """The loss of `--loss-type seq_cls`, as transformers' `...ForSequenceClassification` computes it.

    One label: `-sum_j target_j log softmax(logits)_j`. Several (`multi_label`): the mean over labels of the binary
    cross entropies of `sigmoid(logits)`. Metrics, as means over rows: `loss`, and `accuracy`, the share of rows whose
    likeliest label is the target, or whose labels above `threshold` are exactly the targets.

    The head's first logit arrives in the place of log-probs, the others as candidates.
    """

    multi_label: bool = False
    threshold: float = 0.5

    columns: ClassVar[tuple[str, ...]] = ("loss_masks", "loss_weights", "class_targets")
    needs_entropy: ClassVar[bool] = False

    def __call__(
        self, log_probs: Tensor, entropy: Tensor | None, inputs: LossInputs
    ) -> tuple[Tensor, dict[str, Tensor]]:
        import torch
        from torch.nn.functional import binary_cross_entropy_with_logits

        logits = log_probs[:, None]
        if inputs.candidates is not None:
            logits = torch.cat([logits, inputs.candidates], dim=1)
        targets, weights = inputs.columns["class_targets"], inputs.columns["loss_weights"]
        if self.multi_label:
            per_row = binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1)
            right = ((logits.sigmoid() > self.threshold) == (targets > 0)).all(dim=1)
        else:
            per_row = -(targets * logits.log_softmax(dim=1)).sum(dim=1)
            right = logits.argmax(dim=1) == targets.argmax(dim=1)
        loss = (weights * per_row).sum()
        metrics = {"loss": loss.detach(), "accuracy": (weights * right).sum()}
        metrics["loss_tokens/sum"] = (inputs.columns["loss_masks"] != 0).sum().to(weights.dtype)
        return loss, metrics
