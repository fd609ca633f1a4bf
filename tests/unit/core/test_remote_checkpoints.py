"""A run with `--save URL`: local directories inside, complete checkpoints at the URL, whatever ends the run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.config import RunConfig
from relax_engine.core.remote_checkpoints import local_checkpoints


def config(**flags: Any) -> RunConfig:
    return RunConfig.from_flat(hf_checkpoint="m", prompt_data=["p"], experiment_name="tried", **flags)


def save(root: str, iteration: int) -> None:
    with CheckpointManager(root).writing(iteration) as directory:
        (directory / "weights").write_bytes(bytes([iteration]) * 100)


def marks(bucket: Path) -> list[str]:
    return sorted(path.parent.name for path in bucket.glob("*/mirror.json"))


def fail_after_two_checkpoints(asked: RunConfig, run_dir: Path, bucket: Path) -> None:
    with local_checkpoints(asked, run_dir) as local:
        assert local.flat.save == local.flat.load == str(run_dir / "checkpoints")
        save(local.flat.save, 1)
        deadline = time.monotonic() + 20
        while marks(bucket) != ["iter_0000001"]:  # while it runs
            assert time.monotonic() < deadline
            time.sleep(0.05)
        save(local.flat.save, 2)
        raise ZeroDivisionError


def test_the_next_machine_continues_and_a_failing_run_leaves_its_last_checkpoint(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    asked = config(save=f"file://{bucket}", load=f"file://{bucket}")
    assert asked.flat.run_dir == "build/runs/tried"
    with pytest.raises(ZeroDivisionError):
        fail_after_two_checkpoints(asked, tmp_path / "one", bucket)
    assert marks(bucket) == ["iter_0000001", "iter_0000002"]
    with local_checkpoints(asked, tmp_path / "two") as local:
        assert CheckpointManager(local.flat.load).complete_iterations() == [2]


def test_another_run_is_loaded_beside_and_stays_as_it_is(tmp_path: Path) -> None:
    other, own = tmp_path / "other", tmp_path / "own"
    with local_checkpoints(config(save=f"file://{other}"), tmp_path / "one") as local:
        save(local.flat.save, 7)
    with local_checkpoints(config(save=f"file://{own}", load=f"file://{other}"), tmp_path / "two") as local:
        assert local.flat.load == str(tmp_path / "two" / "loaded")
        assert CheckpointManager(local.flat.load).complete_iterations() == [7]
        save(local.flat.save, 8)
    assert (marks(other), marks(own)) == (["iter_0000007"], ["iter_0000008"])


def test_local_directories_are_left_alone(tmp_path: Path) -> None:
    plain = config(save=str(tmp_path / "saved"))
    with local_checkpoints(plain, tmp_path / "run") as local:
        assert local is plain


def test_the_critic_goes_along(tmp_path: Path) -> None:
    resource = {"actor": [1, 1], "critic": [1, 1], "rollout": [1, 1]}
    asked = config(save=f"file://{tmp_path}/bucket", advantage_estimator="ppo", resource=resource)
    assert asked.flat.critic_save == f"file://{tmp_path}/bucket/critic"
    with local_checkpoints(asked, tmp_path / "run") as local:
        assert local.flat.critic_save == str(tmp_path / "run" / "checkpoints" / "critic")
        for root in (local.flat.save, local.flat.critic_save):
            save(root, 3)
    assert (tmp_path / "bucket/critic/iter_0000003/mirror.json").is_file()
