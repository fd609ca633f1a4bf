"""What the configuration implies for the roles: optimizer steps, on-policy, needed columns."""

from __future__ import annotations

from pathlib import Path

from relax_engine.algorithms import registry
from relax_engine.algorithms.batch import needs_whole_batch, produced_columns
from relax_engine.algorithms.distillation import DistillationSettings
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.config import RunConfig
from relax_engine.config.critic import uses_critic
from relax_engine.config.roles import has_teacher_role, old_policy_is_current, required_roles
from relax_engine.multimodal.media import TRAIN_INPUTS
from relax_engine.multimodal.model import family_of
from relax_engine.stream.columns import OWN_EXPERTS, ROUTED_EXPERTS

SFT_COLUMNS = ("tokens", "response_lengths", "loss_masks", "sample_indices")
SUPERVISED_COLUMNS = {"dpo": ("group_index",), "seq_cls": ("class_targets",)}
"""What supervised losses need beside tokens and masks."""
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
VALUES = "values"
"""What the critic adds to every row."""
TARGETS = ("returns", "loss_weights")
"""What the critic learns from, added by whoever computes advantages."""
_FORWARD_BUDGET = 16384
LOG_PROB_COLUMNS = {"actor_fwd": "log_probs", "reference": "ref_log_probs"}


def partition_number(name: str) -> int:
    """The step that a partition is for: 7 for `train_7`."""
    return int(name.rpartition("_")[2])


def steps_per_rollout(config: RunConfig) -> int:
    """Optimizer steps on each partition; a supervised one is the batch of one step."""
    return 1 if config.supervised else int(config.flat.num_steps_per_rollout)


def rows_per_example(config: RunConfig) -> int:
    """Rows that one example of supervised training makes: the two answers of a pair, or one."""
    return 2 if config.flat.loss_type == "dpo" else 1


def rows_per_part(config: RunConfig) -> int:
    """Rows that are trained together: `global_batch_size / num_iters_per_train_update`, in whole groups."""
    flat = config.flat
    size = rows_per_example(config) if config.supervised else flat.n_samples_per_prompt
    groups = flat.global_batch_size if config.supervised else max(1, flat.global_batch_size // size)
    return int(size * -(-groups // flat.num_iters_per_train_update))


def needs_whole_step(config: RunConfig) -> bool:
    """Whether advantages look at all rows of an optimizer step, and not at one prompt group after the other."""
    settings = AlgorithmSettings.from_config(config.flat)
    custom = config.flat.custom_advantage_function_path is not None
    return custom or needs_whole_batch(registry.get(settings.advantage_estimator), settings)


def rows_per_advantages(config: RunConfig) -> int:
    """Rows whose advantages are computed together: a part, or a whole optimizer step where that is needed."""
    return int(config.flat.global_batch_size) if needs_whole_step(config) else rows_per_part(config)


def trains_on_policy(config: RunConfig) -> bool:
    """Whether the samples of an optimizer step were made by exactly the weights that the step starts from."""
    return config.staleness_bound == 0 and steps_per_rollout(config) == 1


def old_is_current(config: RunConfig) -> bool:
    """Whether the old policy of the loss is the current one without gradient, so that nobody computes its log-probs."""
    return old_policy_is_current(config)


def computes_in_process(config: RunConfig) -> bool:
    """Whether the actor computes log-probs and advantages itself, rather than roles of their own."""
    return config.mode != "fully_async"


def publishes(config: RunConfig, version: int, *, start: int, end: int) -> bool:
    """Whether engines get weights of `version`: a run's first and last, and every `update_weights_interval`th."""
    return version in (start, end) or version % int(config.flat.update_weights_interval) == 0


def evaluation_is_due(config: RunConfig, step: int) -> bool:
    """Whether the weights after `step` steps are evaluated."""
    flat = config.flat
    if not flat.eval_prompt_data or not flat.eval_interval or step % flat.eval_interval:
        return False
    return step > 0 or not flat.skip_eval_before_train


def published_version(config: RunConfig, version: int, *, end: int) -> int:
    """The newest version not after `version` that engines get, unless the run started behind it."""
    return version if version == end else version - version % int(config.flat.update_weights_interval)


def forward_budget(config: RunConfig) -> int:
    """Tokens of one forward-only micro-batch."""
    return int(config.flat.log_probs_max_tokens_per_gpu or _FORWARD_BUDGET)


def forward_columns(config: RunConfig) -> dict[str, str]:
    """The run's forward-only roles, and the column that each adds to every row."""
    return {role: LOG_PROB_COLUMNS[role] for role in required_roles(config) if role in LOG_PROB_COLUMNS}


def teacher_columns(config: RunConfig) -> tuple[str, ...]:
    """What the teacher role adds to every row, and which teacher that was where there are several; () without one."""
    if not has_teacher_role(config):
        return ()
    routed = ("teacher",) if config.flat.opd_teacher_routes else ()
    return (*routed, *DistillationSettings.from_config(config.flat).columns)


def routing_columns(config: RunConfig) -> tuple[str, ...]:
    """What the policy needs to send tokens to the experts that they were sampled with."""
    return (ROUTED_EXPERTS,) if config.flat.use_rollout_routing_replay else ()


def records_routing(config: RunConfig) -> bool:
    """Whether the pass for old log-probs also says which experts it chose; the rollout's, if replayed, come first."""
    return bool(config.flat.use_routing_replay and not config.flat.use_rollout_routing_replay)


def policy_columns(config: RunConfig, role: str) -> tuple[str, ...]:
    """What a forward-only role adds to every row: its log-probs, and `actor_fwd` the experts that it chose."""
    recorded = (OWN_EXPERTS,) if role == "actor_fwd" and records_routing(config) else ()
    return (forward_columns(config)[role], *recorded)


def input_columns(config: RunConfig) -> list[str]:
    """What a forward pass reads of a row: its tokens, and its media where the model has encoders for them."""
    directory = Path(config.model.hf_checkpoint or "")
    media = (directory / "config.json").is_file() and family_of(directory) is not None
    return ["tokens", "response_lengths", *([TRAIN_INPUTS] if media else [])]


def actor_columns(config: RunConfig) -> list[str]:
    """Columns that a row must have before the actor may train on it."""
    inputs = input_columns(config)
    if config.supervised:
        return list(dict.fromkeys([*inputs, *SFT_COLUMNS, *SUPERVISED_COLUMNS.get(config.flat.loss_type, ())]))
    columns = list(dict.fromkeys([*inputs, *ROLLOUT_COLUMNS, *teacher_columns(config), *routing_columns(config)]))
    if config.mode == "fully_async":
        settings = AlgorithmSettings.from_config(config.flat)
        spec = registry.get(settings.advantage_estimator)
        forward = [name for role in forward_columns(config) for name in policy_columns(config, role)]
        return [*columns, *forward, *produced_columns(spec, settings)]
    return columns + value_columns(config)


def value_columns(config: RunConfig) -> list[str]:
    """What advantages need of a critic."""
    return [VALUES] if uses_critic(config) else []


def checkpoint_is_due(config: RunConfig, rollout_id: int, num_steps: int) -> bool:
    """Whether a run of `num_steps` is saved after this rollout: at every `save_interval`th, and at the end."""
    interval = config.flat.save_interval
    return rollout_id + 1 == num_steps or bool(interval and (rollout_id + 1) % interval == 0)
