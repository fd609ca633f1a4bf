"""The Serve deployment behind each role's name. Which roles a run has: `relax_engine.config.roles`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Deployment


def deployment(name: str) -> Deployment:
    """The Serve deployment of a role.

    Raises:
        KeyError: no such role.
    """
    from relax_engine.components.actor import ActorDeployment
    from relax_engine.components.actor_fwd import ActorFwdDeployment, ReferenceDeployment
    from relax_engine.components.advantages import AdvantagesDeployment
    from relax_engine.components.critic import CriticDeployment
    from relax_engine.components.genrm import GenrmDeployment
    from relax_engine.components.rollout_api import RolloutDeployment
    from relax_engine.components.sft import SftDeployment
    from relax_engine.components.teacher import TeacherDeployment

    table: dict[str, Any] = {
        "actor": ActorDeployment,
        "actor_fwd": ActorFwdDeployment,
        "advantages": AdvantagesDeployment,
        "critic": CriticDeployment,
        "genrm": GenrmDeployment,
        "reference": ReferenceDeployment,
        "rollout": RolloutDeployment,
        "sft": SftDeployment,
        "teacher": TeacherDeployment,
    }
    role: Deployment = table[name]
    return role
