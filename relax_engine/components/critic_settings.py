"""What the critic's flags mean: its backend's configuration, where its weights come from, when it is trained alone."""

from __future__ import annotations

from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.config import RunConfig
from relax_engine.config.critic import is_model_directory


def trains_actor(config: RunConfig, rollout_id: int) -> bool:
    """Whether the actor takes optimizer steps on this rollout, rather than leaving it to the critic alone."""
    flat = config.flat
    return not (flat.critic_train_only or rollout_id < flat.num_critic_only_steps)


def initial_critic(config: RunConfig) -> str:
    """Where a new critic's weights come from: a Hugging Face directory, or a checkpoint directory.

    `--critic-load` where it is a model directory or has checkpoints of another run, else the actor's own initial
    weights. This run's own directories are not another run's: what a killed run left there without an actor beside it
    is ahead of the actor.
    """
    flat = config.flat
    load = flat.critic_load
    if load is not None and is_model_directory(load):
        return str(load)
    elsewhere = load is not None and load not in (flat.critic_save, f"{flat.load}/critic")
    return str(load if elsewhere and CheckpointManager(load).latest() else flat.ref_load)


def critic_roots(config: RunConfig) -> list[str]:
    """Directories that may hold the critic's checkpoints of a resumed run, the likeliest first."""
    roots = (config.flat.critic_load, config.flat.critic_save)
    return [root for root in dict.fromkeys(roots) if root is not None and not is_model_directory(root)]


def critic_config(config: RunConfig) -> RunConfig:
    """The configuration of the critic's backend: its own architecture, learning rate and warm-up."""
    flat, initial = config.flat, initial_critic(config)
    changes = {"lr": flat.critic_lr, "lr_warmup_iters": flat.critic_lr_warmup_iters}
    return config.replace(**changes, **({"hf_checkpoint": initial} if is_model_directory(initial) else {}))
