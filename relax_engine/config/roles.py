"""Which roles a run has, and how many devices they need.

What lives here: the role table of the modes. What does not: placement on a cluster (`relax_engine.core.placement`).
"""

from __future__ import annotations

from relax_engine.config.critic import uses_critic
from relax_engine.config.run_config import RunConfig


def device_free(config: RunConfig, role: str) -> bool:
    """Whether a role needs no entry in `--resource`: it computes on the CPU only, or asks servers elsewhere."""
    asks_elsewhere = config.distillation.opd_type == "sglang" and config.distillation.teacher_hf_checkpoint is None
    return role in ("advantages", "sft") or (role == "teacher" and asks_elsewhere)


def uses_reference(config: RunConfig) -> bool:
    """Whether log-probs of the reference model are needed: by a KL term of non-zero weight, or by DPO."""
    objective = config.algorithm
    if config.supervised:
        return objective.loss_type == "dpo" and not objective.dpo_reference_free
    return (objective.use_kl_loss and objective.kl_loss_coef != 0) or objective.kl_coef != 0


def compares_with_sampler(config: RunConfig) -> bool:
    """Whether the old policy of the algorithm is always the one that sampled, whose log-probs come with the samples."""
    from relax_engine.algorithms.registry import get, names

    name = config.algorithm.advantage_estimator
    return name in names() and get(name).ratio_to_behaviour


def old_policy_is_current(config: RunConfig) -> bool:
    """Whether the policy being trained is taken for the old one, so that old log-probs need no forward pass.

    Asked for by `true_on_policy_mode`, and so by construction when a rollout is one optimizer step and the old
    log-probs would come from the weights before this step: the samples' own (no staleness), or the actor's
    (`use_decoupled_ppo`, and everywhere but in fully async).
    """
    if config.resources.keep_old_actor:
        return False
    if config.resources.true_on_policy_mode:
        return True
    one_step = config.data.num_steps_per_rollout == 1
    own = config.algorithm.use_decoupled_ppo or config.mode != "fully_async"
    return one_step and (config.staleness_bound == 0 or own)


def has_teacher_role(config: RunConfig) -> bool:
    """Whether the teacher is a role of its own: asked by HTTP, or a model on devices of its own (fully async)."""
    settings = config.distillation
    return settings.use_opd and (settings.opd_type == "sglang" or config.mode == "fully_async")


def judge_roles(config: RunConfig) -> tuple[str, ...]:
    """The judge of rewards, where the run serves it."""
    return ("genrm",) if config.reward.genrm_model_path is not None else ()


def forward_only_roles(config: RunConfig) -> tuple[str, ...]:
    """Roles that are a model of the training backend which is not trained there, run or not."""
    held = config.distillation.opd_type == "megatron"
    return ("reference", "actor_fwd", *(("teacher",) if held else ()))


def required_roles(config: RunConfig) -> tuple[str, ...]:
    """The roles that run, in the order in which samples pass them.

    Supervised training has a producer of rows and the actor. Colocate and hybrid have rollout and actor, and the
    actor computes everything else in process, except values: an algorithm that needs them has a critic in every mode.
    Fully async adds the advantages role, a reference where a KL term is used, and actor_fwd where the old policy's
    log-probs have to be computed: not when the engine's are taken for them (`use_rollout_logprobs`, or an algorithm
    that always does), not when the current policy is the old one, and not when the old policy is the actor's own at the
    start of its step (`use_decoupled_ppo`). Distillation adds the teacher, unless the actor holds it in process, and
    `genrm_model_path` the judge.
    """
    if config.supervised:
        return ("sft", "actor")
    if config.debug.debug_rollout_only:
        return ("rollout", *judge_roles(config))
    critic = ("critic",) if uses_critic(config) else ()
    teacher = ("teacher",) if has_teacher_role(config) else ()
    if config.mode != "fully_async":
        return ("rollout", *judge_roles(config), *teacher, *critic, "actor")
    roles = ["rollout", *judge_roles(config), *teacher]
    objective = config.algorithm
    elsewhere = objective.use_rollout_logprobs or objective.use_decoupled_ppo or old_policy_is_current(config)
    if not elsewhere and not compares_with_sampler(config):
        roles.append("actor_fwd")
    if uses_reference(config):
        roles.append("reference")
    return (*roles, *critic, "advantages", "actor")


def sharing_roles(config: RunConfig) -> tuple[str, ...]:
    """Roles that sit on the same devices and take turns: all of colocate's, and in hybrid the critic with the actor."""
    inside = {"colocate": ("rollout", "critic", "actor"), "hybrid": ("critic", "actor")}.get(config.mode, ())
    shared = tuple(role for role in inside if role in required_roles(config))
    return shared if len(shared) > 1 else ()


def devices_of(config: RunConfig, role: str) -> int:
    """Devices given to `role` by `--resource`; 0 where it is not listed."""
    return sum(devices for name, (_, devices) in config.resources.resource.items() if name == role)


def devices_needed(config: RunConfig) -> int:
    """Devices of the whole run: roles that share take the larger number, all others add up."""
    shared = sharing_roles(config)
    apart = sum(devices_of(config, role) for role in required_roles(config) if role not in shared)
    return apart + max((devices_of(config, role) for role in shared), default=0)


def data_parallel_size(config: RunConfig) -> int:
    """Data-parallel ranks of the actor: its devices over tensor x pipeline x context parallelism (at least 1)."""
    return max(1, devices_of(config, "actor") // model_parallel_size(config))


def model_parallel_size(config: RunConfig) -> int:
    """Devices that hold one copy of the trained model."""
    sizes = config.parallelism
    return sizes.tensor_model_parallel_size * sizes.pipeline_model_parallel_size * sizes.context_parallel_size


def generates_ahead(config: RunConfig) -> bool:
    """Whether groups of later rollouts start before a rollout is full.

    Not on shared devices, nor where a run must repeat exactly; and not where a rollout starts more groups than it needs
    and must train all of them on the weights that sampled them.
    """
    surplus = config.flat.over_sampling_batch_size > config.flat.rollout_batch_size
    in_turns = config.mode == "colocate" or config.flat.deterministic
    return not in_turns and not (config.rollouts_ahead == 0 and surplus)
