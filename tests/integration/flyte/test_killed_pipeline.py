"""The pipeline killed at every boundary between two tasks and inside every task: started again, it comes to its end."""

from __future__ import annotations

import multiprocessing
import signal
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from letters import HERE, ROOT, environment, prompts, settings

from examples.tiny_math.make_model import make_model
from relax_engine.lineage import ArtifactStore

DEADLINE_S = 600
MARK = "RELAX_TEST_PIPELINE"
FORKED = multiprocessing.get_context("forkserver")
TASKS = Counter(
    intake_file=2,
    intake_model=1,
    convert_dataset=2,
    validate_dataset=2,
    import_checkpoint=1,
    evaluate=2,
    train=1,
    export_checkpoint=1,
    publish=1,
)
ARTIFACTS = {
    *("base", "train-raw", "heldout-raw", "train", "heldout", "train-validation", "heldout-validation", "start"),
    *("evaluation-before", "run", "checkpoint", "model", "evaluation-after", "report"),
}


def run_forked(*arguments: Any) -> None:
    """What the process of an attempt executes."""
    import killed_pyflyte

    killed_pyflyte.attempt(*arguments)


class Pipeline:
    """One home, one store; attempt after attempt."""

    def __init__(self, home: Path, inputs: list[str]) -> None:
        home.mkdir()
        self.home, self.inputs, self.mark = home, inputs, uuid.uuid4().hex
        self.points, self.bodies = home / "points.txt", home / "bodies.txt"

    def attempt(self, *, killed: bool = True) -> int:
        """Exit code of `pyflyte run`; with `killed` it dies at its next point."""
        variables = {**environment(self.home), MARK: self.mark}
        arguments = ["run", str(ROOT / "workflows/post_training.py"), "post_training", *self.inputs]
        began = time.monotonic()
        process = FORKED.Process(target=run_forked, args=(self.home, variables, arguments, killed))
        process.start()
        process.join(DEADLINE_S)
        point = (self.lines(self.points) or [""])[-1] if process.exitcode else "the end"
        print(f"{time.monotonic() - began:6.1f} s to {point}", flush=True)
        assert process.exitcode in (0, -signal.SIGKILL), (self.home / "out.log").read_text()[-4000:]
        return process.exitcode

    def lines(self, path: Path) -> list[str]:
        return path.read_text().splitlines() if path.exists() else []

    @property
    def store(self) -> ArtifactStore:
        return ArtifactStore.open(str(self.home / "artifacts"))


def check_what_is_visible(store: ArtifactStore, point: str) -> None:
    """Every version of every name is whole, and so is everything it was made from."""
    task, kind, *committing = point.split()
    for name in store.names():
        assert name.removeprefix("letters-") in ARTIFACTS
        for version in store.versions(name):
            assert store.verify(version) == [], point
            for ancestor in store.ancestors(version):
                assert store.resolve(ancestor.ref).digest == ancestor.digest
        assert len(store.versions(name)) == 1, f"{name} has a version that a killed attempt left, after {point}"
    if kind == "committing" and not (task.startswith("publish") and committing == ["letters-model"]):  # its alias
        assert committing[0] not in set(store.names()), point


@pytest.mark.chaos
@pytest.mark.timeout(2400)
def test_killed_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    prompts(source / "train.parquet", "first", 64)
    prompts(source / "heldout.parquet", "first", 16)
    make_model(source / "model")
    settings(source / "run.yaml", num_rollout=4, save="s", save_interval=1)
    inputs = [
        *("--train_prompts", str(source / "train.parquet"), "--heldout_prompts", str(source / "heldout.parquet")),
        *("--base_model", str(source / "model"), "--config", str(source / "run.yaml"), "--name", "letters"),
    ]
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{HERE}")
    FORKED.set_forkserver_preload(["killed_pyflyte", "test_killed_pipeline"])
    undisturbed = Pipeline(tmp_path / "undisturbed", inputs)
    assert undisturbed.attempt(killed=False) == 0
    pipeline = Pipeline(tmp_path / "killed", inputs)
    finished: dict[str, int] = {}
    while pipeline.attempt() != 0:
        point = pipeline.lines(pipeline.points)[-1]
        begun = Counter(pipeline.lines(pipeline.bodies))
        assert {task: begun[task] for task in finished} == finished, "a task ran again whose result was kept"
        check_what_is_visible(pipeline.store, point)
        if point.endswith(" cached"):
            finished[point.partition(" ")[0]] = begun[point.partition(" ")[0]]

    died = Counter((point.partition(":")[0], point.split()[1]) for point in pipeline.lines(pipeline.points))
    print("\n".join(f"{times} x {task} {kind}" for (task, kind), times in died.items()))
    for task, times in TASKS.items():
        assert died[task, "done"] == died[task, "cached"] == times, task
        assert died[task, "committing"] + died[task, "shown"] >= times, task
    assert died["train", "training"] == 1
    repeats = Counter(pipeline.lines(pipeline.bodies))
    assert len(repeats) == TASKS.total()
    print(f"{died.total()} kills, {repeats.total()} bodies begun for {len(repeats)} tasks")

    store, whole = pipeline.store, undisturbed.store
    assert {name.removeprefix("letters-") for name in store.names()} == ARTIFACTS
    for name in ("train", "heldout", "start", "model"):
        assert store.resolve(f"letters-{name}").digest == whole.resolve(f"letters-{name}").digest, name
    for each in (store, whole):
        assert each.aliases("letters-model").get("production") == whole.aliases("letters-model").get("production")
    left = store.collect_garbage(grace_s=-1).removed
    print(f"{len(left)} objects that nothing reaches were collected")
    assert all(store.verify(version) == [] for name in store.names() for version in store.versions(name))
    assert [path.name for path in (pipeline.home / "work").iterdir()] == ["converted"]
    wait_for_the_dead(pipeline.mark)


def wait_for_the_dead(mark: str) -> None:
    """Ray's processes notice by themselves that the program is gone."""
    deadline = time.monotonic() + 60
    while alive := [process for process in psutil.process_iter() if carries(process, mark)]:
        assert time.monotonic() < deadline, [process.cmdline() for process in alive]
        time.sleep(0.5)


def carries(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
