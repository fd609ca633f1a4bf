"""On-policy distillation: the student samples, a teacher says how likely it would have been.

What lives here: divergences of student and teacher (`divergence`), their flags (`settings`), and how they enter the
advantage (`advantage`) or the loss (`loss_term`). What does not: who computes the teacher's log-probs (the roles).
"""

from relax_engine.algorithms.distillation.divergence import sampled_divergence, top_k_divergence
from relax_engine.algorithms.distillation.settings import DistillationSettings
from relax_engine.algorithms.distillation.terms import distillation_loss, distilled_advantages

__all__ = [
    "DistillationSettings",
    "distillation_loss",
    "distilled_advantages",
    "sampled_divergence",
    "top_k_divergence",
]
