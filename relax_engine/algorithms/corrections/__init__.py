"""Corrections for data that another policy than the trained one has sampled.

Three policies are told apart: the *behaviour* policy sampled the tokens (column `rollout_log_probs`, the engine's), the
*proximal* policy is the trainer's before the step (the old log-probs of the loss), the *current* one carries the
gradient. What lives here: weights and masks from proximal over behaviour (`weights`), sequence masking (`opsm`), a
user's own correction (`custom`), and how far the policies are apart (`mismatch`). What does not: the ratio of current
to proximal inside the loss (`relax_engine.algorithms.loss`).
"""

from relax_engine.algorithms.corrections.opsm import off_policy_sequence_mask
from relax_engine.algorithms.corrections.weights import Correction, importance_correction, importance_weights

__all__ = ["Correction", "importance_correction", "importance_weights", "off_policy_sequence_mask"]
