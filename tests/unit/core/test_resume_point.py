"""Where a run starts."""

import json
import logging
from pathlib import Path

import pytest

from relax_engine.checkpoint.errors import CheckpointNotFoundError
from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.components.actor import RUN_STATE
from relax_engine.config import RunConfig
from relax_engine.core.resume import ResumePoint, find_resume_point


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Complete checkpoints of iterations 2 and 5."""
    for iteration in (2, 5):
        save(tmp_path / "run", iteration)
    return tmp_path / "run"


def save(root: Path, iteration: int) -> None:
    with CheckpointManager(root).writing(iteration) as directory:
        (directory / "weights").write_bytes(bytes(100))
        (directory / RUN_STATE).write_text(json.dumps({"iteration": iteration, "data_position": {"epoch": 0}}))


def point(load: Path | None, **flags: object) -> ResumePoint:
    return find_resume_point(RunConfig.from_flat(hf_checkpoint="m", load=None if load is None else str(load), **flags))


def test_without_a_checkpoint_a_run_starts_at_the_beginning(tmp_path: Path) -> None:
    assert point(None) == point(tmp_path / "none") == ResumePoint(0, None, {})
    tmp_path.joinpath("iter_0000004.partial").mkdir()
    assert point(tmp_path) == ResumePoint(0, None, {})


def test_the_newest_complete_checkpoint_is_taken(root: Path) -> None:
    found = point(root)
    assert (found.iteration, found.directory, found.weights_only) == (5, str(root / "iter_0000005"), False)
    assert found.state["data_position"] == {"epoch": 0}


@pytest.mark.parametrize("damage", ["no marker", "short file", "missing file"])
def test_a_half_written_one_is_passed_over(root: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    newest = root / "iter_0000005"
    match damage:
        case "no marker":
            (newest / "checkpoint.json").unlink()
        case "short file":
            (newest / "weights").write_bytes(bytes(99))
        case "missing file":
            (newest / RUN_STATE).unlink()
    with caplog.at_level(logging.WARNING):
        assert point(root).iteration == 2
    assert "iter_0000005" in caplog.text


def test_an_imported_model_gives_weights_and_nothing_else(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path).writing(0) as directory:
        (directory / "weights").write_bytes(bytes(10))
    assert point(tmp_path) == ResumePoint(0, str(tmp_path / "iter_0000000"), {}, weights_only=True)


def test_weights_alone_start_training_anew(root: Path) -> None:
    assert point(root, only_load_weight=True) == ResumePoint(0, str(root / "iter_0000005"), {}, weights_only=True)


PPO = {"advantage_estimator": "ppo", "resource": {"actor": (1, 1), "critic": (1, 1), "rollout": (1, 1)}}


def test_actor_and_critic_resume_from_the_newest_iteration_that_both_have(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for iteration in (2, 4):
        save(root / "critic", iteration)
    with caplog.at_level(logging.WARNING):
        found = point(root, **PPO)
    assert found.iteration == 2
    assert found.directory_of("actor") == str(root / "iter_0000002")
    assert found.directory_of("critic") == str(root / "critic" / "iter_0000002")
    assert "iter_0000005: there is no critic of iteration 5" in caplog.text
    save(root / "critic", 5)
    assert (point(root, **PPO).iteration, point(root).critic) == (5, None)


def test_a_critic_of_its_own_directory_is_found(root: Path, tmp_path: Path) -> None:
    save(tmp_path / "elsewhere", 5)
    for flags in (
        {"critic_load": str(tmp_path / "elsewhere")},
        {"save": "s", "critic_save": str(tmp_path / "elsewhere")},
    ):
        assert point(root, **PPO, **flags).critic == str(tmp_path / "elsewhere" / "iter_0000005")


def test_checkpoints_without_a_critic_do_not_resume_silently(root: Path) -> None:
    """A critic that starts anew beside a trained actor is another run."""
    save(root / "critic", 3)
    with pytest.raises(CheckpointNotFoundError, match=r"none of their iterations has a critic in .*critic .*\[3\]"):
        point(root, **PPO)
    anew = point(root, **PPO, only_load_weight=True)
    assert (anew.iteration, anew.directory, anew.critic) == (0, str(root / "iter_0000005"), None)


@pytest.mark.parametrize("start", [0, 3, 9])
def test_an_explicit_start_is_obeyed(root: Path, start: int) -> None:
    """slime#2236: the checkpoint's iteration won over the flag, zero above all."""
    found = point(root, start_rollout_id=start)
    assert (found.iteration, found.directory) == (start, str(root / "iter_0000005"))
    assert point(None, start_rollout_id=start).iteration == start
