"""Exports and imports killed at any moment: what is at their place afterwards is whole, or nothing."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from relax_engine.checkpoint import CheckpointManager, export_checkpoint, import_checkpoint
from relax_engine.checkpoint.dcp_reader import DcpReader
from tests.unit.checkpoint.hf_models import assert_same_weights, config, make_model, read_weights

KILLS = 15


def _killed(work: Callable[[], object], seconds: float) -> None:
    """Run `work` in a fork of this process, and kill it."""
    process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    process.start()
    time.sleep(seconds)
    process.kill()
    process.join(30)


def test_a_killed_export_leaves_the_old_model_the_new_one_or_none(tmp_path: Path) -> None:
    origin = make_model(tmp_path / "hf", config(tied=False))
    run = import_checkpoint(origin, tmp_path / "run").root
    home = tmp_path / "home"
    out = home / "out"
    expected = read_weights(origin)

    def work() -> None:
        while True:
            export_checkpoint(run, out, origin_hf_dir=origin, max_shard_bytes=9000, force=True)

    moments = random.Random(1)
    leftovers = 0
    for _ in range(KILLS):
        home.mkdir()
        _killed(work, moments.uniform(0.0, 0.1))
        leftovers += any(path.name != "out" for path in home.iterdir())
        assert all(path.name.startswith(".") for path in home.iterdir() if path != out)
        if out.exists():
            assert_same_weights(read_weights(out), expected)
            assert (out / "config.json").is_file()
        shutil.rmtree(home)
    assert leftovers >= 2, "the kills came too late or too early to test anything"


def test_a_killed_import_leaves_a_complete_iteration_or_none(tmp_path: Path) -> None:
    origin = make_model(tmp_path / "hf", config())
    whole = DcpReader(import_checkpoint(origin, tmp_path / "whole").path)
    moments = random.Random(2)
    unfinished = 0
    for kill in range(KILLS):
        root = tmp_path / f"run{kill}"
        _killed(lambda root=root: import_checkpoint(origin, root), moments.uniform(0.0, 0.06))
        latest = CheckpointManager(root).latest()
        unfinished += latest is None and root.exists()
        if latest is not None:
            reader = DcpReader(latest.path)
            assert_same_weights(*({key: each.read(key) for key in whole.keys()} for each in (reader, whole)))  # noqa: SIM118
    assert unfinished >= 1, "the kills came too late or too early to test anything"
