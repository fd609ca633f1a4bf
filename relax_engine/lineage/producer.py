"""Facts about who produces an artifact: code, packages, host. Collected once per process.

Takes nothing from torch, so that publishing stays light; accelerators are read from the driver's own listing.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

_GIT_DEADLINE_S = 10.0


def describe_producer(config_digest: str | None) -> dict[str, Any]:
    """The ``producer`` field of a manifest.

    Returns: ``git_commit`` (40 hex digits or None outside a checkout), ``git_dirty`` (tracked files changed;
    None when unknown), ``config_digest``, ``packages_digest``, ``host``.
    """
    commit, dirty = git_state()
    return {
        "git_commit": commit,
        "git_dirty": dirty,
        "config_digest": config_digest,
        "packages_digest": packages_digest(),
        "host": host_facts(),
    }


@functools.cache
def git_state() -> tuple[str | None, bool | None]:
    """Commit and dirtiness of the source tree this package runs from.

    An image built without ``.git`` states its commit in ``RELAX_GIT_COMMIT``; its tree counts as clean.
    """
    stated = os.environ.get("RELAX_GIT_COMMIT")
    if stated:
        return stated, False
    source = Path(__file__).resolve().parents[2]
    if not (source / ".git").exists():
        return None, None
    try:
        commit = _git(source, "rev-parse", "HEAD")
        return commit, bool(_git(source, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):  # no git program, or a tree it refuses to read
        return None, None


def _git(source: Path, *arguments: str) -> str:
    command = ["git", "-C", str(source), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_DEADLINE_S, check=True)
    return done.stdout.strip()


@functools.cache
def packages_digest() -> str:
    """SHA-256 (hex) of the sorted ``name==version`` lines of all installed distributions."""
    lines = {f"{d.metadata['Name'].lower()}=={d.version}" for d in metadata.distributions() if d.metadata["Name"]}
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


@functools.cache
def host_facts() -> dict[str, Any]:
    """Operating system, machine type, Python, CPU count, memory in bytes, NVIDIA devices seen by the driver."""
    gpus = Path("/proc/driver/nvidia/gpus")
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "nvidia_devices": len(list(gpus.iterdir())) if gpus.is_dir() else 0,
    }
