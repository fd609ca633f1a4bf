"""The settings of one recipe, each handed out once.

What lives here: lookup, and which keys are left. What does not: their meaning (`mapping`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

import yaml

from relax_engine.migrate.shell.symbols import is_known


class Settings:
    """Text by dotted key.

    `supervised` says that the recipe trains on answers; of all `devices`, the rollout has `rollout_devices` for itself.
    """

    def __init__(self, values: Mapping[str, str], *, supervised: bool = False) -> None:
        """Take the settings; a leading `+` or `++` of a key, and `~`, are Hydra's and fall away."""
        self._all = {key.lstrip("+~"): value for key, value in values.items()}
        self._left = dict(self._all)
        self.supervised = supervised
        self.reward: dict[str, str] = {}
        self.reward_arguments: list[str] = []
        self.tools: str | None = None
        self.rollout_devices = self._count("rollout", absent=0)
        self.devices = self._count("trainer") + self.rollout_devices

    def _count(self, section: str, absent: int = 8) -> int:
        nodes, each = self._integer(f"{section}.nnodes", 1), self._integer(f"{section}.n_gpus_per_node", absent)
        return nodes * each

    def _integer(self, key: str, absent: int) -> int:
        text = self._all.get(key, "")
        value = yaml.safe_load(text) if text and is_known(text) else None
        return value if isinstance(value, int) else absent

    def get(self, key: str) -> str | None:
        """The value of a key that is left."""
        return self._left.get(key)

    def original(self, key: str) -> str | None:
        """The value of a key, taken or not."""
        return self._all.get(key)

    def take(self, key: str) -> str | None:
        """The value of a key that is left, which is then no longer."""
        return self._left.pop(key, None)

    def has_prefix(self, prefix: str) -> bool:
        """Whether any key, taken or not, begins with `prefix`."""
        return any(key.startswith(prefix) for key in self._all)

    def matching(self, pattern: str) -> list[str]:
        """The keys left that fit a pattern."""
        return [key for key in self._left if fnmatch.fnmatchcase(key, pattern)]

    def left(self) -> dict[str, str]:
        """All that is left."""
        return dict(self._left)
