"""Where the APIs of a run answer, on disk beside its token, for as long as the run goes on."""

from __future__ import annotations

import contextlib
from pathlib import Path

ADDRESS_FILE = "api_url"


def write_address(run_dir: Path, base_url: str) -> None:
    """Keep `base_url`, which is in front of every role's name, as `api_url` in `run_dir`."""
    (run_dir / ADDRESS_FILE).write_text(base_url + "\n")


def remove_address(run_dir: Path) -> None:
    """Forget the address of a run that ends."""
    (run_dir / ADDRESS_FILE).unlink(missing_ok=True)


def read_address(run_dir: Path) -> str | None:
    """The `api_url` of a run directory; None where there is none, as of a run that has ended."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return (run_dir / ADDRESS_FILE).read_text().strip() or None
    return None
