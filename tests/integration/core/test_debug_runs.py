"""A run that is recorded, its parts run alone, and its numbers recomputed."""

from pathlib import Path
from typing import Any

import pytest

from relax_engine.core.replay import replay
from relax_engine.core.result import RunResult
from relax_engine.core.train import train
from relax_engine.observe.bundle import read_samples

STEPS = 2


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundle")


@pytest.fixture(scope="module")
def recorded(ray_cluster: None, tiny: Any, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    config = tiny.config(
        tmp_path_factory.mktemp("recorded"),
        num_rollout=STEPS,
        num_steps_per_rollout=2,
        use_kl_loss=True,
        kl_loss_coef=0.1,
        dump_details=str(bundle),
    )
    return train(config)


def test_the_replay_agrees_with_the_run(recorded: RunResult, bundle: Path) -> None:
    found = replay(bundle)
    assert {difference.rollout_id for difference in found} == set(range(STEPS))
    assert {difference.quantity for difference in found} >= {"reward", "step 1 advantages", "step 0 loss"}
    assert max(difference.largest for difference in found) < 1e-5


def test_training_alone_on_recorded_samples_repeats_the_losses(
    recorded: RunResult, tiny: Any, bundle: Path, tmp_path: Path
) -> None:
    again = train(
        tiny.config(
            tmp_path,
            num_rollout=STEPS,
            num_steps_per_rollout=2,
            use_kl_loss=True,
            kl_loss_coef=0.1,
            load_debug_rollout_data=f"{bundle}/rollout_data/{{rollout_id}}.jsonl",
        )
    )
    assert again.losses == recorded.losses
    assert "rollout/generate" not in again.phase_seconds


def test_sampling_alone_gives_the_first_rollout_again(
    recorded: RunResult, tiny: Any, bundle: Path, tmp_path: Path
) -> None:
    template = f"{tmp_path}/samples/{{rollout_id}}.jsonl"
    result = train(
        tiny.config(
            tmp_path,
            num_rollout=STEPS,
            debug_rollout_only=True,
            save_debug_rollout_data=template,
            resource={"rollout": [1, 1]},
        )
    )
    assert (result.steps, result.losses) == (0, [])
    assert read_samples(template, 0) == read_samples(f"{bundle}/rollout_data/{{rollout_id}}.jsonl", 0)
    second = read_samples(template, 1)
    assert [sample.first_version for sample in second[0]] == [0] * 4
    assert [sample.group_index for group in second for sample in group] == [4 + i // 4 for i in range(16)]
