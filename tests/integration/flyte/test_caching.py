"""`pyflyte run` on the data half of the pipeline: what runs again, what is found, what a bad dataset does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.tiny_math.make_model import make_model
from relax_engine.lineage import ArtifactStore
from tasks.executions import VARIABLE, read_executions

ROOT = Path(__file__).resolve().parents[3]
EVERYTHING = ["convert_dataset", "import_checkpoint", "intake_file", "intake_model", "validate_dataset"]
DATA_ONLY = ["convert_dataset", "intake_file", "validate_dataset"]


def write(path: Path, rows: int, long_row: int | None = None) -> Path:
    records: list[dict[str, Any]] = [
        {
            "data_source": "test",
            "prompt": [{"role": "user", "content": "x" * (400 if index == long_row else 4)}],
            "reward_model": {"style": "rule", "ground_truth": f"answer {index}"},
        }
        for index in range(rows)
    ]
    pq.write_table(pa.Table.from_pylist(records), path)
    return path


@dataclass
class Flyte:
    """A home of its own (Flyte's cache lies there), an artifact store and a working directory."""

    home: Path
    model: Path

    def run(self, file: Path) -> tuple[int, list[str], str]:
        """Exit code, names of the tasks that ran, and everything printed."""
        log = self.home / "executions.jsonl"
        log.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "HOME": str(self.home),
            "RELAX_ARTIFACTS": str(self.home / "artifacts"),
            "RELAX_WORK": str(self.home / "work"),
            VARIABLE: str(log),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        workflow = Path(__file__).parent / "data_workflow.py"
        command = [str(Path(sys.executable).parent / "pyflyte"), "run", str(workflow), "data_part"]
        done = subprocess.run(
            [*command, "--file", str(file), "--model", str(self.model)],
            cwd=self.home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        names = sorted(execution.task for execution in read_executions(log))
        return done.returncode, names, " ".join((done.stdout + done.stderr).split())

    @property
    def store(self) -> ArtifactStore:
        return ArtifactStore.open(str(self.home / "artifacts"))


@pytest.fixture
def flyte(tmp_path: Path) -> Flyte:
    return Flyte(tmp_path, make_model(tmp_path / "model"))


def test_only_new_content_runs(flyte: Flyte, tmp_path: Path) -> None:
    file = write(tmp_path / "train.parquet", 5)
    code, ran, output = flyte.run(file)
    assert (code, ran) == (0, EVERYTHING), output
    first = flyte.store.resolve("t-train")
    assert [parent.ref for parent in first.parents] == ["t-train-raw@v1"]
    assert flyte.store.resolve("t-train-validation").parents[0].digest == first.digest

    assert flyte.run(file)[:2] == (0, [])

    (tmp_path / "elsewhere").mkdir()
    shutil.copy(file, tmp_path / "elsewhere" / "renamed.parquet")
    assert flyte.run(tmp_path / "elsewhere" / "renamed.parquet")[:2] == (0, [])

    write(file, 6)
    code, ran, output = flyte.run(file)
    assert (code, ran) == (0, DATA_ONLY), output
    assert flyte.store.resolve("t-train").metrics == {"rows": 6.0}

    shutil.rmtree(tmp_path / "artifacts")
    write(file, 5)
    code, ran, output = flyte.run(file)
    assert (code, ran) == (0, EVERYTHING), output
    assert flyte.store.resolve("t-train").digest == first.digest


def test_a_bad_dataset_fails_with_rows_and_reasons_and_publishes_nothing(flyte: Flyte, tmp_path: Path) -> None:
    code, _, output = flyte.run(write(tmp_path / "train.parquet", 5, long_row=3))
    assert code != 0
    assert "DataValidationError" in output
    assert "prompt has 1 to 255 tokens, in 1 row (row 3:" in output
    assert set(flyte.store.names()) == {"t-base", "t-start", "t-train-raw"}
    report = (tmp_path / "work" / "failed" / "t-train.html").read_text()
    assert "prompt length" in report
    assert "<td>3</td>" in report
    decks = [path.read_text() for path in Path("/tmp").glob("flyte-*/sandbox/local_flytekit/*/deck.html")]
    assert any("Validation of t-train" in deck and "the dataset is not usable" in deck for deck in decks)
