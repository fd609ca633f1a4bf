"""What the configuration implies for the roles: optimizer steps, on-policy, needed columns."""

from __future__ import annotations

from relax_engine.algorithms import registry
from relax_engine.algorithms.batch import produced_columns
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.config import RunConfig
from relax_engine.config.roles import required_roles

SFT_COLUMNS = ("tokens", "response_lengths", "loss_masks")
ROLLOUT_COLUMNS = (
    "tokens",
    "response_lengths",
    "loss_masks",
    "rollout_log_probs",
    "rewards",
    "raw_reward",
    "group_index",
    "sample_indices",
    "first_version",
    "last_version",
)
LOG_PROB_COLUMNS = {"actor_fwd": "log_probs", "reference": "ref_log_probs"}


def steps_per_rollout(config: RunConfig) -> int:
    """Optimizer steps on each partition."""
    return int(config.flat.num_steps_per_rollout)


def trains_on_policy(config: RunConfig) -> bool:
    """Whether old and current policy are the same by construction, so old log-probs need no forward pass."""
    return config.staleness_bound == 0 and steps_per_rollout(config) == 1


def old_is_current(config: RunConfig) -> bool:
    """Whether the old policy of the loss is the current one without gradient: the weights do not change between the
    sampling and the step, or, with `--use-decoupled-ppo`, between the start of the step and its only update."""
    decoupled = config.flat.use_decoupled_ppo and steps_per_rollout(config) == 1
    return trains_on_policy(config) or decoupled


def forward_columns(config: RunConfig) -> dict[str, str]:
    """The run's forward-only roles, and the column that each adds to every row."""
    return {role: LOG_PROB_COLUMNS[role] for role in required_roles(config) if role in LOG_PROB_COLUMNS}


def actor_columns(config: RunConfig) -> list[str]:
    """Columns that a row must have before the actor may train on it."""
    if config.flat.loss_type == "sft":
        return list(SFT_COLUMNS)
    columns = list(ROLLOUT_COLUMNS)
    if config.mode == "fully_async":
        settings = AlgorithmSettings.from_config(config.flat)
        spec = registry.get(settings.advantage_estimator)
        columns += [*forward_columns(config).values(), *produced_columns(spec, settings)]
    return columns
