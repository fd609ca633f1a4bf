"""`python3 -m relax_engine.entrypoints.doctor [--format json] [--] FLAGS`; the same as `relax doctor`."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from relax_engine.cli.doctor import main as doctor_main
from relax_engine.cli.runner import run_command


def main() -> int:
    """Check the flags of the command line; returns the exit code."""
    return run_command(doctor_main, [word for word in sys.argv[1:] if word != "--"])


if __name__ == "__main__":
    sys.exit(main())
