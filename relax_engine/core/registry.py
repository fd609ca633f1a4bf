"""Which roles a configuration needs, and the deployment behind each name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relax_engine.components.mode import forward_columns
from relax_engine.config import RunConfig

if TYPE_CHECKING:
    from ray.serve import Deployment


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """One role of a run: its name (also its route) and how many devices it gets."""

    name: str
    devices: int


def roles_of(config: RunConfig) -> list[RoleSpec]:
    """Roles in start order.

    | mode | roles |
    |---|---|
    | supervised | sft, actor |
    | colocate | actor, rollout |
    | fully async | actor, rollout, advantages, and actor_fwd / reference where their log-probs are used |
    """
    devices = {name: count for name, (_, count) in config.flat.resource.items()}
    if config.flat.loss_type == "sft":
        return [RoleSpec("actor", devices["actor"]), RoleSpec("sft", 0)]
    roles = [RoleSpec("actor", devices["actor"]), RoleSpec("rollout", devices["rollout"])]
    if config.mode == "fully_async":
        roles += [RoleSpec(name, devices[name]) for name in forward_columns(config)]
        roles.append(RoleSpec("advantages", devices.get("advantages", 0)))
    return roles


def shared_roles(config: RunConfig) -> tuple[str, ...]:
    """Roles that sit on the same devices and take turns."""
    return ("actor", "rollout") if config.mode == "colocate" else ()


def deployment(name: str) -> Deployment:
    """The Serve deployment of a role.

    Raises:
        KeyError: no such role.
    """
    from relax_engine.components.actor import ActorDeployment
    from relax_engine.components.actor_fwd import ActorFwdDeployment, ReferenceDeployment
    from relax_engine.components.advantages import AdvantagesDeployment
    from relax_engine.components.rollout import RolloutDeployment
    from relax_engine.components.sft import SftDeployment

    table: dict[str, Any] = {
        "actor": ActorDeployment,
        "actor_fwd": ActorFwdDeployment,
        "advantages": AdvantagesDeployment,
        "reference": ReferenceDeployment,
        "rollout": RolloutDeployment,
        "sft": SftDeployment,
    }
    role: Deployment = table[name]
    return role
