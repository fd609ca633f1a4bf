"""Whether a migrated recipe holds: the doctor's findings in both modes, and rewards compared with the source's.

What lives here: the two checks. What does not: the rules (`relax_engine.config.doctor`), and running rewards
(`dry_run`, in a process of its own).
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax_engine.config.doctor import check
from relax_engine.config.rules.base import Finding
from relax_engine.config.run_config import RunConfig
from relax_engine.errors import ConfigError
from relax_engine.migrate.errors import MigrationError
from relax_engine.migrate.shell.symbols import render

_DRY_RUN_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores of the migrated and the source's reward: how many were compared, and the first that differ."""

    compared: int
    differing: int
    examples: tuple[str, ...]


def configuration(values: Mapping[str, Any]) -> RunConfig:
    """The configuration of these values; unknown parts count as the text that the shell would expand.

    Raises:
        ConfigError: values that exclude each other by type.
    """
    return RunConfig.from_flat(**{name: _rendered(value) for name, value in values.items()})


def doctor(values: Mapping[str, Any], root: Path) -> list[Finding]:
    """Findings without the notes, with modules found below `root`; values that make no configuration are one error."""
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    try:
        findings = check(configuration(values))
    except ConfigError as error:
        return [Finding("error", "configuration", str(error), "")]
    finally:
        sys.path.remove(str(root))
    return [finding for finding in findings if finding.severity != "note"]


def compare(folder: Path, module: str, source: str, rows: Path) -> Comparison:
    """Score the rows with both rewards.

    Args:
        folder: Import root of the migrated reward.
        module: Its dotted name.
        source: The source's function, `file.py:name`.
        rows: JSONL or Parquet in verl's layout, each with a `response` or scored on answers made from its ground truth.

    Raises:
        MigrationError: the rewards could not be run; the message has the end of what they wrote.
    """
    command = [sys.executable, "-m", "relax_engine.migrate.dry_run", f"{module}:reward_func", source, str(rows)]
    paths = [str(folder), *sys.path[:1], os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_DRY_RUN_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise MigrationError(f"scoring the rows of {rows} took longer than {_DRY_RUN_SECONDS} seconds") from None
    if done.returncode != 0:
        raise MigrationError(f"scoring the rows of {rows} failed: {' '.join(done.stderr.split()[-40:])}")
    result = json.loads(done.stdout.splitlines()[-1])
    return Comparison(result["compared"], result["differing"], tuple(result["examples"]))


def _rendered(value: Any) -> Any:
    if isinstance(value, str):
        return render(value)
    if isinstance(value, list):
        return [_rendered(item) for item in value]
    if isinstance(value, dict):
        return {name: _rendered(item) for name, item in value.items()}
    return value
