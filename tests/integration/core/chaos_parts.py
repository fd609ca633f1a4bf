"""What `make chaos` kills: one part of the suite is one run, its mode and the kinds of process that die in it.

What lives here: the table. What does not: killing and auditing (`chaos.py`).
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field
from typing import Any

import core_rewards

ASYNC: dict[str, Any] = {
    "fully_async": True,
    "max_staleness": 1,
    "resource": {"actor": [1, 1], "rollout": [1, 1], "actor_fwd": [1, 1], "reference": [1, 1], "advantages": [1, 0]},
    "use_kl_loss": True,
    "kl_loss_coef": 0.01,
    "num_iters_per_train_update": 2,
}
KINDS = (
    "engine",
    "rollout",
    "actor",
    "actor_rank",
    "actor_fwd",
    "actor_fwd_rank",
    "reference",
    "reference_rank",
    "advantages",
    "stream_controller",
    "storage_unit",
    "serve_controller",
)


def alone(*kinds: str) -> tuple[tuple[str], ...]:
    """Lots of one."""
    return tuple((kind,) for kind in kinds)


TRAINING = alone("engine", "rollout", "actor", "actor_rank", "stream_controller")
PPO: dict[str, Any] = {
    "advantage_estimator": "ppo",
    "custom_rm_path": f"{core_rewards.HERE}:one",
    "resource": {"actor": [1, 1], "critic": [1, 1], "rollout": [1, 1]},
    "num_steps_per_rollout": 1,
}
SUPERVISED: dict[str, Any] = {
    "loss_type": "sft",
    "global_batch_size": 16,
    "custom_rm_path": None,
    "resource": {"actor": [1, 1]},
}


@dataclass(frozen=True)
class Part:
    """A run in which each of `lots` dies `kills` times, in an order that the seed decides.

    The kinds of a lot die at once, the next lot when a step was finished since.
    """

    name: str
    lots: tuple[tuple[str, ...], ...]
    kills: int = 20
    flags: dict[str, Any] = field(default_factory=lambda: ASYNC)
    save_interval: int = 5
    steps_per_kill: int = 6

    @property
    def seed(self) -> int:
        """Of the first run, the same on every machine; each further one adds 1."""
        return zlib.crc32(self.name.encode())

    def schedule(self, seed: int) -> list[tuple[str, ...]]:
        """What dies, in order."""
        kills = [lot for lot in self.lots for _ in range(self.kills)]
        random.Random(seed).shuffle(kills)
        return kills

    @property
    def steps(self) -> int:
        """More than there are kills: the run goes on until the kind dies, and while some kinds are away."""
        return self.steps_per_kill * self.kills * len(self.lots)


PARTS = (
    Part("engine", alone("engine")),
    Part("rollout", alone("rollout")),
    Part("actor", alone("actor")),
    Part("actor-rank", alone("actor_rank")),
    Part("scorers", (("actor_fwd", "reference", "advantages"),)),
    Part("scorer-ranks", (("actor_fwd_rank", "reference_rank"),)),
    Part("storage", alone("storage_unit"), steps_per_kill=15),
    Part("controllers", (("stream_controller", "serve_controller"),), steps_per_kill=20),
    Part("all-kinds", alone(*KINDS), kills=2),
    Part("moving-reference", alone("reference", "actor"), kills=5, flags={**ASYNC, "ref_update_interval": 3}),
    Part(
        "old-policies", alone("actor_fwd", "actor"), kills=2, flags={**ASYNC, "keep_old_actor": True}, save_interval=2
    ),
    Part("hybrid", TRAINING, kills=3, flags={"hybrid": True, "max_staleness": 1}),
    Part("colocate", TRAINING, kills=3, flags={}),
    Part("critic", alone("critic", "critic_rank"), kills=3, flags=PPO, save_interval=1),
    Part("supervised", alone("sft", "actor", "actor_rank", "stream_controller"), kills=3, flags=SUPERVISED),
)
"""In fully async every kind dies twenty times; the other modes have a few kills of what is different in them."""
