"""A task that a few steps learn, and `pyflyte run` on it, in a home of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from relax_engine.config import RunConfig
from tasks.executions import VARIABLE

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent


def prompts(path: Path, label: str, rows: int) -> Path:
    """`rows` prompts in verl's layout whose responses are to begin in the `label` half of the alphabet."""
    message = [{"role": "user", "content": "a letter"}]
    reward = {"style": "rule", "ground_truth": label}
    row = {"data_source": "letters", "prompt": message, "reward_model": reward}
    pq.write_table(pa.Table.from_pylist([row] * rows), path)
    return path


def settings(path: Path, **changes: Any) -> Path:
    values: dict[str, Any] = {
        "hf_checkpoint": "replaced",
        "prompt_data": ["replaced"],
        "custom_rm_path": f"{HERE / 'letter_reward.py'}:reward_func",
        "num_rollout": 12,
        "rollout_batch_size": 8,
        "n_samples_per_prompt": 8,
        "n_samples_per_eval_prompt": 4,
        "rollout_max_prompt_len": 48,
        "rollout_max_response_len": 4,
        "lr": 1e-2,
        "max_tokens_per_gpu": 2048,
        "role_deadline": 120.0,
        "wait_timeout": 120.0,
    }
    path.write_text(RunConfig.from_flat(**values | changes).to_yaml())
    return path


def command(workflow: str, name: str, *arguments: object, raw_output: str | None = None) -> list[str]:
    """`pyflyte run`; what Flyte itself keeps goes to `raw_output`."""
    prefix = ["--raw-output-data-prefix", raw_output] if raw_output else []
    return [
        str(Path(sys.executable).parent / "pyflyte"),
        "run",
        *prefix,
        str(ROOT / workflow),
        name,
        *map(str, arguments),
    ]


def environment(home: Path, store: str | None = None) -> dict[str, str]:
    """A home (Flyte's cache), a working directory, a log of executions and an artifact store of its own."""
    return {
        **os.environ,
        "HOME": str(home),
        "RELAX_ARTIFACTS": store or str(home / "artifacts"),
        "RELAX_WORK": str(home / "work"),
        VARIABLE: str(home / "executions.jsonl"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }


def pyflyte(home: Path, workflow: str, name: str, *arguments: object, store: str | None = None) -> str:
    """Run a workflow to its end; what it printed, on one line."""
    done = subprocess.run(
        command(workflow, name, *arguments, raw_output=f"{store}/flyte" if store else None),
        cwd=home,
        env=environment(home, store),
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 0, output[-4000:]
    return output
