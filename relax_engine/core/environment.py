"""What a run was made with: command, code, packages, host, seeds. Kept as `environment.json` beside its metrics."""

from __future__ import annotations

import json
import os
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from relax_engine.config import RunConfig
from relax_engine.lineage.producer import git_state, host_facts
from relax_engine.utils.redact import redact

NAME = "environment.json"
_VARIABLES = ("OMP_NUM_THREADS", "RAY_ADDRESS", "CUDA_VISIBLE_DEVICES", "RELAX_ARTIFACTS")


def write_environment(config: RunConfig, run_dir: Path) -> None:
    """Write the record; a run that is resumed keeps that of the code that finishes it."""
    (run_dir / NAME).write_text(json.dumps(describe_environment(config), indent=1) + "\n")


def describe_environment(config: RunConfig) -> dict[str, Any]:
    """The record as JSON: `command`, `config_digest`, `seeds`, `git_commit`, `git_dirty`, `packages` (name -> version),
    `host`, and the environment `variables` that change what is computed."""
    commit, dirty = git_state()
    found = {distribution.metadata["Name"]: distribution.version for distribution in metadata.distributions()}
    return {
        "command": redact(shlex.join(sys.argv)),
        "config_digest": config.digest(),
        "seeds": {"seed": config.flat.seed, "rollout_seed": config.flat.rollout_seed},
        "git_commit": commit,
        "git_dirty": dirty,
        "packages": dict(sorted((name, version) for name, version in found.items() if name)),
        "host": host_facts(),
        "variables": {name: redact(os.environ[name]) for name in _VARIABLES if name in os.environ},
    }


def differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What is not the same in two records, one line each; the command and the configuration's digest aside."""
    lines = []
    for key in ("git_commit", "git_dirty", "seeds"):
        if then.get(key) != now.get(key):
            lines.append(f"{key}: {then.get(key)} -> {now.get(key)}")
    for key in ("packages", "host", "variables"):
        old, new = then.get(key, {}), now.get(key, {})
        lines += [
            f"{key}: {name} {old.get(name, '-')} -> {new.get(name, '-')}"
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        ]
    return lines
