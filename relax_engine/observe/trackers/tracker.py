"""What a tracker does."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Protocol

from relax_engine.errors import ConfigError


class Tracker(Protocol):
    """Takes the metrics of one step after the other. Called from one thread, which is not the training's."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of `step`."""

    def rewind(self, step: int) -> None:
        """The run goes on from an earlier point: `step` and later ones come again."""

    def close(self) -> None:
        """Write out what is left."""


def require(module: str, flag: str) -> ModuleType:
    """Import a tracker's package.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--{flag} needs the package {error.name!r}: pip install 'relax-engine[trackers]', or leave the flag out"
        ) from error
