"""Rules about the critic: its flags, model, devices and schedule."""

from __future__ import annotations

import json
from pathlib import Path

from relax_engine.config.critic import is_model_directory, uses_critic
from relax_engine.config.roles import devices_of, model_parallel_size
from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig

_FLAGS = (
    "critic_load",
    "critic_save",
    "critic_lr",
    "critic_lr_warmup_iters",
    "critic_train_only",
    "num_critic_only_steps",
)


@rule
def critic_flags_need_a_critic(config: RunConfig, report: Reporter) -> Findings:
    """Flags of the critic belong to an algorithm that has one."""
    given = [name for name in _FLAGS if name in config.changed()]
    if given and not uses_critic(config):
        yield report.warning(
            " ".join([*given, "advantage_estimator"]),
            "without effect: this algorithm has no critic",
            "--advantage-estimator ppo, or leave them out",
        )


@rule
def critic_trains_before_the_actor(config: RunConfig, report: Reporter) -> Findings:
    """The actor has rollouts left after the critic's own."""
    alone, rollouts = config.algorithm.num_critic_only_steps, config.data.num_rollout
    if uses_critic(config) and not config.algorithm.critic_train_only and rollouts is not None and alone >= rollouts:
        yield report.error(
            "num_critic_only_steps num_rollout",
            f"the critic has all {rollouts} rollouts to itself, and the actor is never trained",
            f"--num-critic-only-steps {rollouts - 1} or less, or --critic-train-only if that is meant",
        )


@rule
def critic_fits_its_devices(config: RunConfig, report: Reporter) -> Findings:
    """The critic is split as the actor is."""
    devices, size = devices_of(config, "critic"), model_parallel_size(config)
    if uses_critic(config) and devices % size:
        yield report.error(
            "resource tensor_model_parallel_size",
            f"one copy of the critic takes {size} devices, which does not divide its {devices}",
            f"give the critic a multiple of {size} devices",
        )


@rule
def critic_schedule(config: RunConfig, report: Reporter) -> Findings:
    """The critic's learning rate falls, and warms up before it decays."""
    schedule = config.optimizer
    if not uses_critic(config):
        return
    if schedule.critic_lr is not None and schedule.min_lr > schedule.critic_lr:
        yield report.error(
            "min_lr critic_lr",
            "the final learning rate lies above the critic's peak",
            f"--min-lr {schedule.critic_lr} or less",
        )
    steps = schedule.lr_decay_iters
    if steps is None and config.data.num_rollout is not None:
        steps = config.data.num_rollout * (config.data.num_steps_per_rollout or 1)
    if schedule.lr_decay_style != "constant" and steps is not None and schedule.critic_lr_warmup_iters >= steps:
        yield report.error(
            "critic_lr_warmup_iters lr_decay_iters num_rollout",
            f"the critic's warm-up leaves nothing of the {steps} steps to decay over",
            f"--critic-lr-warmup-iters below {steps}, or --lr-decay-style constant",
        )


@rule
def critic_save_needs_save(config: RunConfig, report: Reporter) -> Findings:
    """The critic is saved when the actor is."""
    if config.checkpoint.critic_save is not None and config.checkpoint.save is None:
        yield report.error(
            "critic_save save", "the critic is saved together with the actor, which has no directory", "--save DIR"
        )


@rule
def critic_model(config: RunConfig, report: Reporter) -> Findings:
    """A model that the critic starts as gives one score per token, and reads the actor's tokens."""
    from relax_engine.checkpoint.errors import UnsupportedModelError
    from relax_engine.checkpoint.families import UnknownArchitectureError, model_spec, value_spec

    load = config.checkpoint.critic_load
    if not uses_critic(config) or load is None:
        return
    if not is_model_directory(load):
        given = config.explicit().get("critic_load") is not None
        if given and not (Path(load) / "latest_checkpointed_iteration.txt").is_file():
            yield report.note(
                "critic_load",
                "no model and no complete checkpoint there yet: a new critic starts from --ref-load or --hf-checkpoint",
            )
        return
    try:
        spec = value_spec(model_spec(json.loads(Path(load, "config.json").read_text(encoding="utf-8"))))
    except json.JSONDecodeError as error:
        yield report.error("critic_load", f"config.json is not valid JSON: {error}", "download the model again")
        return
    except (UnknownArchitectureError, UnsupportedModelError) as error:
        yield report.error("critic_load", str(error), "name a ...ForCausalLM, or a reward model with one label")
        return
    actor = Path(str(config.model.hf_checkpoint), "config.json")
    vocabulary = json.loads(actor.read_text(encoding="utf-8")).get("vocab_size") if actor.is_file() else None
    if vocabulary is not None and spec.vocab_size != vocabulary:
        yield report.error(
            "critic_load hf_checkpoint",
            f"the critic's vocabulary has {spec.vocab_size} tokens, the actor's {vocabulary}: they are not the same",
            "start the critic from a model of the actor's family",
        )
