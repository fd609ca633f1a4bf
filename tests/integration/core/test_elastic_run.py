"""Engines come, go, die and are taken away during a run: every row is trained once, and the policy learns the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import core_rewards
import pytest
from chaos import ChaosRun
from scaled import Scaled

from relax_engine.backends.engines.launch import launch_engine
from relax_engine.observe.metrics import read_metrics

STEPS, ROWS, LAST = 250, 16, 20
FLAGS: dict[str, Any] = {
    "hybrid": True,
    "max_staleness": 1,
    "partial_rollout": True,
    "num_rollout": STEPS,
    "custom_rm_path": f"{core_rewards.HERE}:even",
    "weight_sync_transport": "object_store",
    "scale_in_drain_timeout": 2.0,
    "save_interval": 100,
}


@pytest.fixture
def start(tiny: Any, tmp_path: Path) -> Iterator[Callable[[str], ChaosRun]]:
    runs = []

    def start(name: str) -> ChaosRun:
        root = tmp_path / name
        root.mkdir()
        store = {"save": str(root / "ckpt"), "weight_sync_url": str(root / "weights")}
        runs.append(ChaosRun(tiny, root / "run", FLAGS | store))
        runs[-1].start()
        return runs[-1]

    yield start
    for run in runs:
        run.stop()


def final_reward(run: ChaosRun) -> float:
    return mean(record["rollout/raw_reward"] for record in read_metrics(run.run_dir / "metrics.jsonl")[-LAST:])


@pytest.mark.long
@pytest.mark.timeout(900)
def test_one_to_four_to_two_to_five_to_one(tiny: Any, start: Callable[[str], ChaosRun]) -> None:
    run = start("elastic")
    assert run.wait_for_step(2, 180)
    scaled = Scaled(run)
    scaled.serve(1)
    scaled.scale("scale_out", "ACTIVE", num_replicas=4)
    scaled.serve(4)
    os.kill(scaled.added()["pid"], signal.SIGKILL)  # it is started again in its place
    scaled.until(lambda: len({e["status"] for e in scaled.engines()}) > 1, "the death is noticed")
    scaled.serve(4)
    scaled.scale("scale_in", "COMPLETED", num_replicas=2)
    scaled.serve(2)
    with launch_engine(tiny.model) as external:
        scaled.scale("scale_out", "ACTIVE", num_replicas=4)
        scaled.scale("scale_out", "ACTIVE", engine_urls=[external.url])
        scaled.serve(5)
        os.kill(scaled.engines()[0]["pid"], signal.SIGKILL)  # the initial one
        scaled.until(lambda: len({e["status"] for e in scaled.engines()}) > 1, "the death is noticed")
        scaled.serve(5)
    scaled.serve(4)  # the external engine is gone, and nobody starts it again
    os.kill(scaled.added()["pid"], signal.SIGTERM)  # its machine is taken away
    scaled.serve(3)
    evictions = [request for request in scaled.ask("/scale_in")["requests"] if request["evicted"]]
    assert [request["status"] for request in evictions] == ["COMPLETED"]
    scaled.scale("scale_in", "COMPLETED", num_replicas=1, force=True)
    scaled.serve(1)
    run.finish(300)
    run.audit(STEPS, ROWS)
    undisturbed = start("undisturbed")
    undisturbed.finish(300)
    undisturbed.audit(STEPS, ROWS)
    rewards = final_reward(run), final_reward(undisturbed)
    print(f"\n{STEPS * ROWS} rows, each trained once; final reward {rewards[0]:.4f}, undisturbed {rewards[1]:.4f}")
    assert abs(rewards[0] - rewards[1]) < 0.05, rewards
    assert min(rewards) > 0.8, rewards
