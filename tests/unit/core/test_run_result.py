"""What a run reports, from its own files."""

import json
from pathlib import Path

import pytest

from relax_engine.components.role import Phase
from relax_engine.core.result import collect_result
from relax_engine.observe.metrics import MetricsLog


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in range(4):
        log.write(
            step,
            {
                "train/loss": -0.1 * step,
                "rollout/raw_reward": 0.25 * step,
                "rollout/staleness/count/0": 8.0,
                f"rollout/staleness/count/{1 + step % 2}": 4.0,
                "train/rollout_logprob_gap": 2.0**-17 * step,
                "weight_sync/logprob_max_abs_diff": 2e-5 if step == 1 else 1e-6,
            },
        )
    return tmp_path


PHASES = [
    Phase("rollout", "generate", 2, 20.0, 22.5),
    Phase("actor", "train", 2, 10.0, 11.0),
    Phase("actor", "train", 3, 30.0, 30.5),
]


def test_numbers_of_a_resumed_run_cover_all_of_it(run_dir: Path) -> None:
    result = collect_result(run_dir, "ckpt", PHASES, start_step=2, wall_seconds=3.14159)
    assert (result.steps, result.new_steps) == (4, 2)
    assert result.reward_curve == [0.0, 0.25, 0.5, 0.75]
    assert result.losses == pytest.approx([0.0, -0.1, -0.2, -0.3])
    assert result.logprob_max_abs_diff == 3 * 2.0**-17
    assert result.phase_seconds == {"actor/train": 1.5, "rollout/generate": 2.5}
    assert (result.wall_seconds, result.checkpoint_dir, result.metrics["rollout/raw_reward"]) == (3.142, "ckpt", 0.75)
    assert "step" not in result.metrics
    assert result.staleness_histogram == {0: 32, 1: 8, 2: 8}


def test_the_timeline_is_in_the_order_of_time(run_dir: Path) -> None:
    collect_result(run_dir, None, PHASES, start_step=0, wall_seconds=1.0)
    timeline = json.loads((run_dir / "timeline.json").read_text())
    assert [phase["start"] for phase in timeline] == [10.0, 20.0, 30.0]
    assert timeline[0] == {"role": "actor", "name": "train", "step": 2, "start": 10.0, "end": 11.0}


def test_a_run_without_steps_has_an_empty_result(tmp_path: Path) -> None:
    result = collect_result(tmp_path, None, [], start_step=0, wall_seconds=0.0)
    assert (result.steps, result.new_steps, result.metrics, result.reward_curve) == (0, 0, {}, [])
    assert result.logprob_max_abs_diff is None


def test_the_result_is_plain_json(run_dir: Path) -> None:
    result = collect_result(run_dir, None, PHASES, start_step=0, wall_seconds=1.0)
    assert json.loads(json.dumps(result.to_dict()))["steps"] == 4
