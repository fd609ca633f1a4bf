"""Rewards: scoring of finished samples.

What lives here: the registry of reward functions, one file per built-in reward, and the executor
that runs them under a deadline. What does not: group normalisation (`relax_engine.algorithms`).
Importing this package imports no reward, no torch and no Ray.
"""

from relax_engine.rewards.errors import RewardError
from relax_engine.rewards.executor import RewardExecutor
from relax_engine.rewards.labels import label_problem
from relax_engine.rewards.registry import register_reward, reward_names
from relax_engine.rewards.settings import RewardSettings

__all__ = ["RewardError", "RewardExecutor", "RewardSettings", "label_problem", "register_reward", "reward_names"]
