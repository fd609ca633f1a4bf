"""Checkpoints at a URL: only whole ones count, the newest comes back, damage is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from relax_engine.checkpoint.errors import DamagedCheckpointError
from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.checkpoint.mirror import CheckpointMirror


def save(root: Path, iteration: int) -> None:
    with CheckpointManager(root).writing(iteration) as directory:
        (directory / "weights").mkdir()
        (directory / "weights" / "__0_0.distcp").write_bytes(bytes([iteration]) * 1000)


def machine(tmp_path: Path, name: str) -> CheckpointMirror:
    """A mirror of one and the same URL from a machine of its own."""
    return CheckpointMirror(f"file://{tmp_path}/bucket/run", tmp_path / name / "checkpoints", tmp_path / name)


def test_a_new_machine_gets_the_newest_checkpoint_and_the_logs_up_to_it(tmp_path: Path) -> None:
    first, second = machine(tmp_path, "first"), machine(tmp_path, "second")
    assert second.pull() is None
    save(first.local, 1)
    (first.run_dir / "metrics.jsonl").write_text('{"step": 0}\n')
    assert first.push() == ["iter_0000001"]
    save(first.local, 2)
    (first.run_dir / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\n')
    assert first.push() == ["iter_0000002"]
    assert first.push() == []

    assert second.pull() == 2
    saved = CheckpointManager(second.local).latest()
    assert saved is not None
    assert (saved.path / "weights" / "__0_0.distcp").read_bytes() == b"\2" * 1000
    assert (second.run_dir / "metrics.jsonl").read_text().count("step") == 2
    assert second.pull() is None  # it is here now


def test_what_is_not_whole_does_not_count(tmp_path: Path) -> None:
    first, second = machine(tmp_path, "first"), machine(tmp_path, "second")
    for iteration in (1, 2):
        save(first.local, iteration)
    first.push()
    (tmp_path / "bucket/run/iter_0000002/mirror.json").unlink()  # killed before it was written
    assert second.pull() == 1
    assert machine(tmp_path, "first").push() == ["iter_0000002"]  # started again
    assert machine(tmp_path, "third").pull() == 2


def test_the_runs_own_pruning_is_repeated_there_and_no_other(tmp_path: Path) -> None:
    first = machine(tmp_path, "first")
    for iteration in (1, 2):
        save(first.local, iteration)
    first.push()
    second = machine(tmp_path, "second")
    second.pull()
    save(second.local, 3)
    second.push()
    CheckpointManager(second.local).prune(1)
    second.push()
    marks = sorted(path.parent.name for path in (tmp_path / "bucket/run").glob("*/mirror.json"))
    assert marks == ["iter_0000001", "iter_0000003"]  # 1 was never on the second machine


def test_with_a_critic_the_newest_that_both_have_is_taken(tmp_path: Path) -> None:
    first, second = machine(tmp_path, "first"), machine(tmp_path, "second")
    for iteration in (1, 2):
        save(first.local, iteration)
    save(first.local / "critic", 1)
    assert first.push() == ["critic/iter_0000001", "iter_0000001", "iter_0000002"]
    assert second.pull() == 1
    assert (second.local / "critic" / "iter_0000001" / "checkpoint.json").is_file()


def test_altered_bytes_are_named(tmp_path: Path) -> None:
    first = machine(tmp_path, "first")
    save(first.local, 1)
    first.push()
    (tmp_path / "bucket/run/iter_0000001/weights/__0_0.distcp").write_bytes(b"\0" * 1000)
    with pytest.raises(DamagedCheckpointError, match=r"iter_0000001/weights/__0_0\.distcp has 1000 bytes"):
        machine(tmp_path, "second").pull()
    assert CheckpointManager(tmp_path / "second" / "checkpoints").latest() is None
