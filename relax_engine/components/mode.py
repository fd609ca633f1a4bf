"""What the configuration implies for the roles: optimizer steps, on-policy, needed columns."""

from __future__ import annotations

from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.config import RunConfig

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


def steps_per_rollout(config: RunConfig) -> int:
    """Optimizer steps on each partition."""
    return int(config.flat.num_steps_per_rollout)


def trains_on_policy(config: RunConfig) -> bool:
    """Whether old and current policy are the same by construction, so old log-probs need no forward pass."""
    return config.staleness_bound == 0 and steps_per_rollout(config) == 1


def forward_columns(config: RunConfig) -> dict[str, str]:
    """Fully-async roles that compute log-probs, and the column that each adds."""
    if config.mode != "fully_async" or config.flat.loss_type == "sft":
        return {}
    settings = AlgorithmSettings.from_config(config.flat)
    roles = {}
    if not trains_on_policy(config) and not settings.use_rollout_logprobs:
        roles["actor_fwd"] = "log_probs"
    if settings.kl_in_loss or settings.kl_coef:
        roles["reference"] = "ref_log_probs"
    return roles


def actor_columns(config: RunConfig) -> list[str]:
    """Columns that a row must have before the actor may train on it."""
    if config.flat.loss_type == "sft":
        return list(SFT_COLUMNS)
    columns = list(ROLLOUT_COLUMNS)
    if config.mode == "fully_async":
        columns += [*forward_columns(config).values(), "advantages", "returns", "loss_weights"]
    return columns
