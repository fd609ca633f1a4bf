"""The training entry point of existing launch scripts; the same as `relax train`.

`python3 relax_engine/entrypoints/train.py FLAGS` from any directory, or
`python3 -m relax_engine.entrypoints.train FLAGS`, alone or behind `ray job submit ... --`.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    # Run as a file: import from the checkout that the file is in, not from the file's own directory.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from relax_engine.cli.runner import run_command
from relax_engine.cli.train import main as train_main


def main() -> int:
    """Train with the flags of the command line; returns the exit code."""
    return run_command(train_main, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
