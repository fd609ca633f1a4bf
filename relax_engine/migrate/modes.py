"""Devices of the two modes, and changes worth proposing.

What lives here: how the source's devices are divided among roles, and the constraints between batch sizes, parallel
sizes and devices. What does not: the doctor's rules, which judge the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relax_engine.config.roles import device_free, model_parallel_size, required_roles
from relax_engine.config.run_config import RunConfig

STALENESS = 2
"""Staleness of the async mode where the source names none."""


@dataclass(frozen=True, slots=True)
class Modes:
    """Fields that differ between the modes."""

    sync: dict[str, Any]
    asynchronous: dict[str, Any]


def plan(config: RunConfig, actor: int, rollout: int | None) -> Modes:
    """Divide devices for both modes.

    Args:
        config: The recipe's settings without mode and devices.
        actor: Devices of the trainer in the source, or all where roles share them.
        rollout: Devices of the rollout in the source, where it has its own.
    """
    total = actor + (rollout or 0)
    shared: dict[str, list[int]] = {"actor": [1, actor if rollout is None else total], "rollout": [1, total]}
    needs_critic = config.algorithm.advantage_estimator == "ppo" and config.algorithm.loss_type == "policy_loss"
    if needs_critic:
        shared["critic"] = [1, total]
    sync = {"resource": shared, "colocate": True, "max_staleness": int(config.rollout.partial_rollout)}
    return Modes(sync, _asynchronous(config, total, actor if rollout is not None else None))


def _asynchronous(config: RunConfig, total: int, actor: int | None) -> dict[str, Any]:
    trial = config.replace(fully_async=True, max_staleness=config.rollout.max_staleness or STALENESS)
    roles = [role for role in required_roles(trial) if role not in ("actor", "rollout", "critic")]
    forward = [role for role in roles if not device_free(trial, role)]
    each = max(1, total // 8)
    size = model_parallel_size(config)
    trained = actor or max(1, total // 2 // size) * size
    sampled = max(1, total - trained - each * len(forward))
    resource: dict[str, list[int]] = {"actor": [1, trained], "rollout": [1, sampled]}
    resource |= {role: [1, each if role in forward else 0] for role in roles}
    fields: dict[str, Any] = {
        "resource": resource,
        "fully_async": True,
        "max_staleness": trial.rollout.max_staleness,
    }
    if forward:
        single = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "context_parallel_size": 1}
        fields["ref_actor_config"] = single | {"sequence_parallel": False}
    return fields


def proposals(config: RunConfig, modes: Modes) -> list[str]:
    """Changes that would make the recipe on-policy, or let it run at all."""
    data = config.data
    found: list[str] = []
    samples = data.rollout_batch_size * data.n_samples_per_prompt
    batch = data.global_batch_size or samples
    product = f"--rollout-batch-size {data.rollout_batch_size} x --n-samples-per-prompt {data.n_samples_per_prompt}"
    if config.supervised:
        pass
    elif batch > samples or samples % batch:
        found.append(
            f"{product} is {samples} samples, which --global-batch-size {batch} does not divide: use {samples}"
        )
    elif batch != samples:
        found.append(
            f"{product} is {samples} samples, trained in {samples // batch} optimizer steps as in the source; "
            f"--global-batch-size {samples} makes it one step, strictly on-policy"
        )
    size = model_parallel_size(config)
    for name, mode in (("sync", modes.sync), ("async", modes.asynchronous)):
        devices = mode["resource"]["actor"][1]
        if devices % size:
            found.append(
                f"{name}: one copy of the model takes {size} devices (TP x PP x CP), which does not divide the actor's "
                f"{devices}: give the actor {-(-devices // size) * size}, or lower a parallel size"
            )
    roles = ", ".join(f"{role} {count}" for role, (_, count) in modes.asynchronous["resource"].items())
    found.append(
        f"async: the source's devices are divided into {roles}; change --resource to what keeps all of them busy"
    )
    return found
