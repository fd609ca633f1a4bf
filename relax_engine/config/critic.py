"""Whether a run has a critic, and what its `--critic-load` names.

What lives here: what roles and rules both ask. What does not: the role (`relax_engine.components.critic`), what its
flags mean to it (`relax_engine.components.critic_settings`), and judgement about them
(`relax_engine.config.rules.critic`).
"""

from __future__ import annotations

from pathlib import Path

from relax_engine.config.run_config import RunConfig


def uses_critic(config: RunConfig) -> bool:
    """Whether the run's algorithm makes advantages of a critic's values."""
    from relax_engine.algorithms.registry import get, names

    objective = config.algorithm
    known = objective.loss_type == "policy_loss" and objective.advantage_estimator in names()
    return known and get(objective.advantage_estimator).needs_critic


def is_model_directory(path: str) -> bool:
    """Whether `path` holds a Hugging Face model rather than checkpoints."""
    return Path(path, "config.json").is_file()
