"""`relax train` before training starts, and its summary afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest

from relax_engine.cli.main import main
from relax_engine.cli.train import summary
from relax_engine.core.result import RunResult


def test_a_run_that_cannot_start_lists_all_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--save-interval", "2"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    for flag in ("--num-epoch (not set)", "--hf-checkpoint (not set)", "--prompt-data (not set)", "--save-interval 2"):
        assert flag in err
    assert "Traceback" not in err


def test_it_refuses_before_importing_ray_and_torch() -> None:
    program = (
        "import sys\n"
        "from relax_engine.cli.main import main\n"
        "assert main(['train']) == 1\n"
        "assert not {'ray', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)


def test_summary() -> None:
    result = RunResult(
        run_dir="build/runs/x",
        checkpoint_dir=None,
        steps=5,
        new_steps=3,
        metrics={},
        reward_curve=[0.25, 0.5],
        losses=[],
        staleness_histogram={0: 8},
        logprob_max_abs_diff=0.0,
        wall_seconds=12.34,
    )
    assert summary(result).splitlines() == [
        "trained 3 steps in 12.3 s (5 in all)",
        "reward      0.2500 -> 0.5000",
        "checkpoint  none (no --save)",
        "run         build/runs/x",
    ]
