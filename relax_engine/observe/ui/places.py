"""Which runs a dashboard shows: one run directory, or all those below a root.

What lives here: finding runs and keeping open what is read of each. What does not: answering requests (`server.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from relax_engine.errors import RelaxError
from relax_engine.observe.journal import read_state
from relax_engine.observe.rollouts.query import Rollouts
from relax_engine.observe.series import RunMetrics
from relax_engine.observe.tokens import TokenTexts
from relax_engine.utils.redact import redact_value

_DEEPEST = 4
_SILENT_S = 120.0
_RUN_FILE = "config.yaml"


class PlaceError(RelaxError):
    """There is no run here."""


class OpenRun:
    """One run directory, with what was read of it so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.metrics = RunMetrics(directory)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration, flat, without credentials."""
        sections = yaml.safe_load((self.directory / _RUN_FILE).read_text()) or {}
        flat: dict[str, Any] = {}
        for name, value in sections.items():
            flat |= value if isinstance(value, dict) else {name: value}
        shown: dict[str, Any] = redact_value(flat)
        return {name: "***" if name == "notify_urls" and value else value for name, value in shown.items()}

    @cached_property
    def rollouts(self) -> Rollouts:
        """Its recorded samples.

        Raises:
            QueryError: it has none.
        """
        return Rollouts(self.directory)

    @cached_property
    def tokens(self) -> TokenTexts:
        """Texts of token ids."""
        return TokenTexts(self.config.get("hf_checkpoint"))

    def summary(self) -> dict[str, Any]:
        """One line about the run."""
        last = self.metrics.last()
        state = read_state(self.directory)
        status = state.get("status", "finished" if last else "empty")
        if status in ("running", "starting") and time.time() - state["time"] > _SILENT_S:
            status = "silent"
        return {
            "status": status,
            "step": last.get("step"),
            "num_steps": state.get("num_steps"),
            "reward": last.get("rollout/raw_reward"),
            "name": self.config.get("experiment_name") or self.directory.name,
            "algorithm": self.config.get("advantage_estimator"),
            "has_rollouts": (self.directory / "rollouts").is_dir(),
        }


class Places:
    """Runs by id: their path below the root, or a name where the root is a run itself."""

    def __init__(self, root: Path, name: str | None = None) -> None:
        """`name` is the id of a root that is a run itself; by default the directory's name.

        Raises:
            PlaceError: there is neither a run nor a directory.
        """
        if not root.is_dir():
            raise PlaceError(f"{root} is no directory; give a run directory, or one with runs in it")
        self.root = root.absolute()
        self._name = name or self.root.name
        self._open: dict[str, OpenRun] = {}

    def run(self, name: str) -> OpenRun:
        """The run with this id.

        Raises:
            PlaceError: there is none; ids that lead out of the root are none.
        """
        if name not in self._open:
            self.names()
        if name not in self._open:
            raise PlaceError(f"there is no run {name!r}")
        return self._open[name]

    def names(self) -> list[str]:
        """Ids of all runs, those that changed last first."""
        found = {self._id(path): path for path in self._runs(self.root, 0)}
        for name, path in found.items():
            if name not in self._open:
                self._open[name] = OpenRun(path)
        self._open = {name: run for name, run in self._open.items() if name in found}
        return sorted(found, key=lambda name: _changed(found[name]), reverse=True)

    def _id(self, path: Path) -> str:
        return self._name if path == self.root else str(path.relative_to(self.root))

    def _runs(self, directory: Path, depth: int) -> Iterator[Path]:
        if (directory / _RUN_FILE).is_file() and (depth == 0 or (directory / "metrics.jsonl").exists()):
            yield directory
        elif depth < _DEEPEST:
            with os.scandir(directory) as entries:
                found = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
            below = [Path(entry.path) for entry in found if not entry.name.startswith(".")]
            for path in sorted(below):
                yield from self._runs(path, depth + 1)


def _changed(directory: Path) -> float:
    newest = [path.stat().st_mtime for name in ("metrics.jsonl", "state.json") if (path := directory / name).exists()]
    return max(newest, default=0.0)
