"""Importing the pipeline stays light: packaging and `--help` load no training library."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "transformers", "megatron", "great_expectations", "reasoning_gym")


def test_workflows_import_nothing_heavy() -> None:
    script = f"import sys, workflows.post_training\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_the_data_command_imports_nothing_heavy_for_help() -> None:
    script = (
        "import sys\nfrom relax_engine.cli.data import main\n"
        "try:\n    main(['validate', '--help'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in (*{HEAVY!r}, 'pyarrow', 'flytekit') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip().endswith("[]")
