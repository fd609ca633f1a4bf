import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from relax_engine.checkpoint.errors import CheckpointNotFoundError, CheckpointSchemaError
from relax_engine.checkpoint.manager import CheckpointManager, read_marker
from relax_engine.checkpoint.marker import Marker
from relax_engine.checkpoint.resolve import resolve_checkpoint


def save(manager: CheckpointManager, iteration: int, text: str = "weights") -> Path:
    with manager.writing(iteration) as directory:
        (directory / "sub").mkdir()
        (directory / "sub/data.bin").write_text(text)
    return manager.path(iteration)


def test_a_checkpoint_appears_whole_under_megatrons_names(tmp_path: Path):
    manager = CheckpointManager(tmp_path / "run")
    assert manager.latest() is None
    assert manager.complete_iterations() == []
    save(manager, 5)
    save(manager, 20)
    assert manager.complete_iterations() == [5, 20]
    assert manager.latest() == (20, tmp_path / "run/iter_0000020")
    assert (tmp_path / "run/latest_checkpointed_iteration.txt").read_text() == "20"
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "iter_0000005",
        "iter_0000020",
        "latest_checkpointed_iteration.txt",
    ]
    marker = json.loads((manager.path(20) / "checkpoint.json").read_text())
    assert marker == {"schema": 2, "iteration": 20, "files": {"sub/data.bin": 7}, "optimizer": None}


def test_nothing_is_visible_before_commit_and_a_failed_block_leaves_nothing(tmp_path: Path):
    manager = CheckpointManager(tmp_path)
    directory = manager.begin(7)
    (directory / "half").write_text("x")
    assert manager.latest() is None
    assert manager.begin(7) == directory
    assert list(directory.iterdir()) == []

    def fail() -> None:
        with manager.writing(8) as failing:
            (failing / "half").write_text("x")
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["iter_0000007.partial"]
    with pytest.raises(CheckpointNotFoundError, match=r"call begin\(9\) first"):
        manager.commit(9)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: (d / "checkpoint.json").unlink(), "has no checkpoint.json"),
        (lambda d: (d / "checkpoint.json").write_text('{"schema": 1, "fi'), "is not JSON"),
        (lambda d: (d / "sub/data.bin").unlink(), r"sub/data.bin has no bytes instead of 7"),
        (lambda d: (d / "sub/data.bin").write_text("weigh"), r"sub/data.bin has 5 bytes instead of 7"),
    ],
)
def test_an_incomplete_newest_is_passed_over_with_a_warning(tmp_path: Path, caplog, damage, reason: str):
    manager = CheckpointManager(tmp_path)
    save(manager, 1)
    damage(save(manager, 2))
    with caplog.at_level(logging.WARNING):
        assert manager.latest() == (1, manager.path(1))
    assert "iter_0000002" in caplog.text
    assert reason in caplog.text
    assert manager.complete_iterations() == [1]


def test_a_layout_of_another_release_is_an_error_not_a_silent_step_back(tmp_path: Path):
    manager = CheckpointManager(tmp_path)
    save(manager, 1)
    (save(manager, 2) / "checkpoint.json").write_text('{"schema": 9, "iteration": 2, "files": {}}')
    with pytest.raises(
        CheckpointSchemaError, match=r"iter_0000002/checkpoint\.json has schema 9; .* reads schemas 1 to 2"
    ):
        manager.latest()


def test_saving_an_iteration_again_replaces_it_even_when_cut_between_the_renames(tmp_path: Path):
    manager = CheckpointManager(tmp_path)
    save(manager, 3, "first")
    save(manager, 3, "second")
    assert (manager.path(3) / "sub/data.bin").read_text() == "second"
    assert manager.complete_iterations() == [3]
    manager.path(3).rename(tmp_path / "iter_0000003.replaced")
    assert manager.latest() == (3, tmp_path / "iter_0000003.replaced")
    save(manager, 3, "third")
    assert (resolve_checkpoint(tmp_path) / "sub/data.bin").read_text() == "third"


def test_prune_keeps_the_newest_and_sweeps_what_killed_savers_left(tmp_path: Path):
    manager = CheckpointManager(tmp_path)
    for iteration in (1, 2, 3, 4):
        save(manager, iteration)
    manager.begin(2)
    manager.begin(9)
    assert manager.prune(2) == [1, 2]
    assert manager.complete_iterations() == [3, 4]
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == [
        "iter_0000003",
        "iter_0000004",
        "iter_0000009.partial",
    ]
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        manager.prune(0)


def test_resolving_a_root_or_an_iteration(tmp_path: Path, caplog):
    manager = CheckpointManager(tmp_path / "run")
    save(manager, 1)
    newest = save(manager, 2)
    with caplog.at_level(logging.INFO):
        assert resolve_checkpoint(tmp_path / "run") == newest
    assert "is a run root: using its latest complete iteration, iter_0000002" in caplog.text
    assert resolve_checkpoint(manager.path(1)) == manager.path(1)
    (newest / "sub/data.bin").unlink()
    with pytest.raises(CheckpointNotFoundError, match=r"is not complete: sub/data\.bin has no bytes instead of 7"):
        resolve_checkpoint(newest)
    with pytest.raises(CheckpointNotFoundError, match="no such directory"):
        resolve_checkpoint(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointNotFoundError, match=r"no complete iter_NNNNNNN directory"):
        resolve_checkpoint(tmp_path / "empty")


def test_listing_checkpoints_imports_no_torch():
    code = "import sys; from relax_engine.checkpoint import CheckpointManager; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0


def test_a_checkpoint_of_the_first_schema_is_read(tmp_path: Path):
    manager = CheckpointManager(tmp_path)
    path = save(manager, 3)
    files = json.loads((path / "checkpoint.json").read_text())["files"]
    (path / "checkpoint.json").write_text(json.dumps({"schema": 1, "iteration": 3, "files": files}))
    assert manager.latest() == (3, path)
    assert read_marker(path) == Marker(3, files, optimizer=None)
    assert resolve_checkpoint(path) == path
    (path / "checkpoint.json").write_text(json.dumps({"schema": 1, "iteration": 3, "files": {"gone": 1}}))
    assert manager.latest() is None
