"""Rules about modes, roles and devices."""

from __future__ import annotations

import json

from relax_engine.config.fields import all_fields
from relax_engine.config.roles import (
    device_free,
    devices_of,
    forward_only_roles,
    model_parallel_size,
    required_roles,
    uses_reference,
)
from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig
from relax_engine.errors import ConfigError
from relax_engine.utils.suggest import nearest


@rule
def one_mode(config: RunConfig, report: Reporter) -> Findings:
    """The modes exclude each other."""
    given = [name for name in ("colocate", "fully_async", "hybrid") if getattr(config.resources, name)]
    if len(given) > 1:
        yield report.error(
            " ".join(given),
            "these modes exclude each other: colocate shares devices in turns, fully async runs all roles at once, and "
            "hybrid gives the rollout its own devices and everything else to the actor",
            "keep one of these flags",
        )


@rule
def roles_have_devices(config: RunConfig, report: Reporter) -> Findings:
    """Every role that the mode runs is listed, with devices unless it computes on the CPU only."""
    needed = [role for role in required_roles(config) if not device_free(config, role)]
    resource = config.resources.resource
    lacking = [role for role in needed if role not in resource]
    if lacking:
        wanted: dict[str, object] = {role: list(entry) for role, entry in resource.items()}
        wanted |= {role: [1, 1] for role in lacking}
        yield report.error(
            "resource",
            f"this run needs devices for {', '.join(needed)}, and --resource lacks {', '.join(lacking)}",
            f"--resource '{json.dumps(wanted)}'",
        )
    empty = [role for role in needed if role in resource and devices_of(config, role) == 0]
    if empty:
        yield report.error("resource", f"{', '.join(empty)} cannot run on 0 devices", "give each at least 1")


@rule
def idle_roles(config: RunConfig, report: Reporter) -> Findings:
    """Roles listed but not run by this mode."""
    idle = [role for role in config.resources.resource if role not in required_roles(config)]
    if idle and "resource" in config.changed():
        yield report.note(
            "resource", f"{', '.join(idle)} does not run as a role of its own in this run, and gets no devices"
        )


@rule
def one_serve_per_role(config: RunConfig, report: Reporter) -> Findings:
    """The first number of a resource entry is always 1."""
    several = [role for role, (serves, _) in config.resources.resource.items() if serves != 1]
    if several:
        yield report.warning(
            "resource",
            f"the first number of {', '.join(several)} is not 1 and has no effect: a role is one deployment",
            "write 1, and all devices of the role as the second number",
        )


@rule
def colocate_is_on_policy(config: RunConfig, report: Reporter) -> Findings:
    """Explain a staleness given in colocate mode, where it is always 0."""
    staleness = config.rollout.max_staleness
    if config.mode != "colocate" or staleness == 0:
        return
    if staleness == 1:
        yield report.note(
            "colocate max_staleness",
            "taken as 0: some guides call 1 on-policy, here 0 is, and colocate always trains what it just sampled",
            "--max-staleness 0 says the same",
        )
    else:
        yield report.warning(
            "colocate max_staleness",
            "taken as 0: colocate always trains what it just sampled, so nothing is ever stale",
            "add --hybrid or --fully-async to let sampling run ahead, or use --max-staleness 0",
        )


@rule
def balance_is_per_part(config: RunConfig, report: Reporter) -> Findings:
    """Balancing a whole batch needs the whole batch at once."""
    if config.data.balance_data and config.data.num_iters_per_train_update > 1:
        yield report.note(
            "balance_data num_iters_per_train_update",
            "ranks are balanced within each streamed part, not over the whole batch",
        )


@rule
def parts_hold_groups(config: RunConfig, report: Reporter) -> Findings:
    """A part of an optimizer step has at least one prompt group."""
    data = config.data
    batch = data.global_batch_size or data.rollout_batch_size * data.n_samples_per_prompt
    groups = batch // data.n_samples_per_prompt
    if not config.supervised and data.num_iters_per_train_update > max(1, groups):
        yield report.warning(
            "num_iters_per_train_update global_batch_size n_samples_per_prompt",
            f"an optimizer step has {groups} prompt groups, which are never divided, so it has no more parts than that",
            f"--num-iters-per-train-update {max(1, groups)} or less",
        )


@rule
def true_on_policy_is_one_step(config: RunConfig, report: Reporter) -> Findings:
    """The current policy is the old one for the first optimizer step on a rollout only."""
    steps = config.data.num_steps_per_rollout or 1
    if config.resources.true_on_policy_mode and steps > 1:
        yield report.error(
            "true_on_policy_mode num_steps_per_rollout global_batch_size",
            f"a rollout is trained in {steps} steps, and from the second on the policy is no longer the one before "
            "them: the clipped ratio would be 1 where it is not",
            "--num-steps-per-rollout 1, or leave --true-on-policy-mode out",
        )


@rule
def one_old_policy(config: RunConfig, report: Reporter) -> Findings:
    """Old log-probs come from one place."""
    resources = config.resources
    if not resources.keep_old_actor:
        return
    for name, given in (
        ("true_on_policy_mode", resources.true_on_policy_mode),
        ("use_rollout_logprobs", config.algorithm.use_rollout_logprobs),
        ("use_decoupled_ppo", config.algorithm.use_decoupled_ppo),
    ):
        if given:
            yield report.error(
                f"keep_old_actor {name}", "these name two different old policies", "keep one of the two flags"
            )


@rule
def rare_publishing_adds_staleness(config: RunConfig, report: Reporter) -> Findings:
    """Say what the interval adds to the bound."""
    interval = config.weight_sync.update_weights_interval
    if interval > 1 and not config.supervised:
        yield report.note(
            "update_weights_interval max_staleness",
            f"engines get every {interval}th version, so a sample may be {config.staleness_bound} versions old when it "
            "is trained",
        )


@rule
def deterministic_is_on_policy(config: RunConfig, report: Reporter) -> Findings:
    """Which weights sample what depends on timing as soon as sampling runs ahead."""
    if config.resources.deterministic and config.rollouts_ahead > 0:
        yield report.error(
            "deterministic max_staleness",
            "when sampling runs ahead of training, the weights that a sample is made with depend on timing",
            "--max-staleness 0",
        )


@rule
def reference_update_is_used(config: RunConfig, report: Reporter) -> Findings:
    """Without a KL term there is no reference to update."""
    if config.checkpoint.ref_update_interval is not None and not uses_reference(config):
        yield report.warning(
            "ref_update_interval use_kl_loss kl_loss_coef",
            "without effect: no KL term is computed against a reference",
            "leave it out, or add --use-kl-loss --kl-loss-coef 0.001",
        )


@rule
def engines_fill_rollout_devices(config: RunConfig, report: Reporter) -> Findings:
    """The rollout's devices divide into whole engines."""
    per_engine = config.resources.rollout_num_gpus_per_engine
    devices = devices_of(config, "rollout")
    if "rollout" in required_roles(config) and devices % per_engine:
        yield report.error(
            "resource rollout_num_gpus_per_engine",
            f"{devices} rollout devices do not divide into engines of {per_engine}",
            f"give rollout a multiple of {per_engine} devices, or change --rollout-num-gpus-per-engine",
        )


@rule
def model_parallel_divides_actor(config: RunConfig, report: Reporter) -> Findings:
    """TP x PP x CP divides the actor's devices; the quotient is data parallelism."""
    devices, size = devices_of(config, "actor"), model_parallel_size(config)
    if devices and devices % size:
        yield report.error(
            "resource tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size",
            f"one copy of the model takes {size} devices, which does not divide the actor's {devices}",
            f"give the actor a multiple of {size} devices, or lower a parallel size",
        )


@rule
def ref_actor_config_is_known(config: RunConfig, report: Reporter) -> Findings:
    """Keys of --ref-actor-config are fields, their values are valid, and the result fits the roles' devices."""
    overrides = config.resources.ref_actor_config
    if overrides and config.mode != "fully_async":
        yield report.note(
            "ref_actor_config",
            "without effect: the actor itself computes reference and old log-probs in this mode, in its own layout",
            "add --fully-async for roles of their own",
        )
    unknown = [name for name in overrides if name not in all_fields()]
    for name in unknown:
        match = nearest(name, all_fields())
        yield report.error(
            "ref_actor_config",
            f"{name!r} is no field",
            f"did you mean {match!r}" if match else "see `relax train --help` for the names, with underscores",
        )
    if unknown or not overrides:
        return
    try:
        changed = config.replace(**overrides)
    except ConfigError as error:
        yield report.error("ref_actor_config", str(error), "correct the value")
        return
    for role in forward_only_roles(config):
        devices, size = devices_of(config, role), model_parallel_size(changed)
        if role in required_roles(config) and devices % size:
            yield report.error(
                "resource ref_actor_config",
                f"one copy of the model takes {size} devices, which does not divide {role}'s {devices}",
                f'set "{_largest_size(changed)}": 1 in --ref-actor-config, or give {role} a multiple of {size}',
            )


@rule
def forward_roles_fit(config: RunConfig, report: Reporter) -> Findings:
    """Without --ref-actor-config the forward roles have the actor's parallel sizes."""
    if config.resources.ref_actor_config:
        return
    size = model_parallel_size(config)
    for role in forward_only_roles(config):
        devices = devices_of(config, role)
        if role in required_roles(config) and devices and devices % size:
            yield report.error(
                "resource tensor_model_parallel_size ref_actor_config",
                f"{role} has {devices} devices, and one copy of the model takes {size}",
                f"""--ref-actor-config '{{"{_largest_size(config)}": 1}}'""",
            )


def _largest_size(config: RunConfig) -> str:
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    return max(names, key=lambda name: getattr(config.flat, name))
