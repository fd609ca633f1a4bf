"""`relax train` killed at a random moment and started again: the numbers of a run that was left alone."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.observe.metrics import read_metrics

STEPS = 6
MARK = "RELAX_TEST_RUN"


def start(tiny: Any, run_dir: Path, mark: str) -> subprocess.Popen[bytes]:
    """`relax train` in a process and a Ray cluster of its own; all its processes carry the mark."""
    run_dir.mkdir(exist_ok=True)
    checkpoints = str(run_dir / "ckpt")
    # Two optimizer steps per rollout, so that the second one's loss is not that of the sampling policy.
    config = tiny.config(
        run_dir,
        save=checkpoints,
        load=checkpoints,
        save_interval=2,
        num_rollout=STEPS,
        num_steps_per_rollout=2,
        eval_prompt_data={"small": [f"{tiny.prompts}[:8]"]},
        eval_interval=2,
    )
    (run_dir / "run.yaml").write_text(config.to_yaml())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_ADDRESS")}
    return subprocess.Popen(
        [Path(sys.executable).parent / "relax", "train", "--config", run_dir / "run.yaml"],
        env={**environment, MARK: mark, "OMP_NUM_THREADS": "1"},
        stdout=(run_dir / "out.log").open("ab"),
        stderr=subprocess.STDOUT,
    )


def numbers(process: subprocess.Popen[bytes], run_dir: Path) -> list[tuple[float, float, float]]:
    """Loss, gradient norm and reward of every step, once the process has ended."""
    assert process.wait(200) == 0, (run_dir / "out.log").read_text()[-4000:]
    records = read_metrics(run_dir / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(STEPS))
    return [(r["train/loss"], r["train/grad_norm"], r["rollout/raw_reward"]) for r in records]


def evaluations(run_dir: Path) -> list[dict[str, Any]]:
    return read_metrics(run_dir / "eval.jsonl")


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.timeout(600)
def test_a_killed_run_continues_bit_for_bit(tiny: Any, tmp_path: Path) -> None:
    seed = int(os.environ.get("RELAX_TEST_SEED", random.randrange(1000)))
    chance = random.Random(seed)
    lines, delay = chance.randrange(1, STEPS), chance.uniform(0, 0.7)
    print(f"RELAX_TEST_SEED={seed}: SIGKILL {delay:.2f} s after step {lines - 1}")

    killed, mark = tmp_path / "killed", uuid.uuid4().hex
    process = start(tiny, killed, mark)
    metrics = killed / "metrics.jsonl"
    deadline = time.monotonic() + 150
    while not metrics.exists() or len(read_metrics(metrics)) < lines:
        assert process.poll() is None, (killed / "out.log").read_text()[-4000:]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(delay)
    assert len(marked(mark)) > 5  # Ray, roles, a rank, an engine
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    deadline = time.monotonic() + 30
    while left := marked(mark):
        assert time.monotonic() < deadline, [each.cmdline() for each in left]
        time.sleep(0.2)
    saved = CheckpointManager(killed / "ckpt").complete_iterations()
    print(f"complete checkpoints: {saved}")
    assert saved in ([], [2], [2, 4], [2, 4, 6])

    resumed, undisturbed = start(tiny, killed, "resumed"), start(tiny, tmp_path / "whole", "whole")
    whole = numbers(undisturbed, tmp_path / "whole")
    assert numbers(resumed, killed) == whole
    assert len(set(whole)) == STEPS
    expected = evaluations(tmp_path / "whole")
    assert [record["step"] for record in expected] == [0, 2, 4, 6]
    assert evaluations(killed) == expected

    # As if the kill had come between the last checkpoint and the evaluation of the final weights.
    lines = (killed / "eval.jsonl").read_text().splitlines(keepends=True)
    (killed / "eval.jsonl").write_text("".join(lines[:-1]))
    assert numbers(start(tiny, killed, "evaluated"), killed) == whole
    assert evaluations(killed) == expected
