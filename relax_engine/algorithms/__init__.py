"""Reinforcement-learning mathematics: pure functions of tensors, found by algorithm name.

What lives here: one file per algorithm and the functions they share. What does not: models, ranks,
processes, configuration parsing. Importing this package does not import torch.
"""

from relax_engine.algorithms.batch import needed_columns, stage_columns, training_columns
from relax_engine.algorithms.constraints import Violation, violations
from relax_engine.algorithms.corrections import importance_weights
from relax_engine.algorithms.kl import kl_penalty
from relax_engine.algorithms.objective import LossFn, LossInputs, PolicyLoss, make_policy_loss
from relax_engine.algorithms.padded import Advantages, LossOutput, compute_advantages, policy_loss, reduce
from relax_engine.algorithms.reduction import BatchTotals, loss_weights
from relax_engine.algorithms.registry import get, names, register
from relax_engine.algorithms.rewards import excluded_rows, normalize_rewards
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import AlgorithmSpec
from relax_engine.algorithms.supervised import SftLoss, make_sft_loss
from relax_engine.algorithms.value import ValueLoss, make_value_loss

__all__ = [
    "Advantages",
    "AlgorithmSettings",
    "AlgorithmSpec",
    "BatchTotals",
    "LossFn",
    "LossInputs",
    "LossOutput",
    "PolicyLoss",
    "SftLoss",
    "ValueLoss",
    "Violation",
    "compute_advantages",
    "excluded_rows",
    "get",
    "importance_weights",
    "kl_penalty",
    "loss_weights",
    "make_policy_loss",
    "make_sft_loss",
    "make_value_loss",
    "names",
    "needed_columns",
    "normalize_rewards",
    "policy_loss",
    "reduce",
    "register",
    "stage_columns",
    "training_columns",
    "violations",
]
