"""The shortest fully-async run, as a process of its own: it generates what it trains, and ends."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from relax_engine.observe.metrics import read_metrics

GROUPS, SAMPLES = 4, 16


@pytest.mark.long
def test_one_rollout_is_generated_once_and_the_process_ends(tiny: Any, tmp_path: Path) -> None:
    """No generation beyond the last rollout, though staleness would allow it (slime#452), and no process that is waited
    for (RLinf#767)."""
    config = tiny.config(
        tmp_path,
        fully_async=True,
        max_staleness=2,
        use_rollout_logprobs=True,
        resource={"actor": [1, 1], "rollout": [1, 1], "advantages": [1, 0]},
        num_rollout=1,
    )
    (tmp_path / "run.yaml").write_text(config.to_yaml())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_ADDRESS")}
    done = subprocess.run(
        [Path(sys.executable).parent / "relax", "train", "--config", tmp_path / "run.yaml"],
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    ended = time.time()
    assert done.returncode == 0, done.stderr[-4000:]
    assert "trained 1 steps" in done.stdout
    assert ended - (tmp_path / "metrics.jsonl").stat().st_mtime < 20
    (record,) = read_metrics(tmp_path / "metrics.jsonl")
    assert (record["stream/produced"], record["stream/trained"], record["stream/in_flight"]) == (SAMPLES, SAMPLES, 0)
    phases = json.loads((tmp_path / "timeline.json").read_text())
    assert sum(phase["name"] == "generate" for phase in phases) == GROUPS
