"""Ticks of the scheduled retraining: what is new is trained, what is not new is not, what is worse is not promoted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.tiny_math.make_model import make_model
from relax_engine.config import RunConfig
from relax_engine.lineage import ArtifactStore

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent


def prompts(path: Path, label: str, rows: int) -> Path:
    """`rows` prompts in verl's layout whose responses are to begin in the `label` half of the alphabet."""
    message = [{"role": "user", "content": "a letter"}]
    reward = {"style": "rule", "ground_truth": label}
    row = {"data_source": "letters", "prompt": message, "reward_model": reward}
    pq.write_table(pa.Table.from_pylist([row] * rows), path)
    return path


def settings(path: Path) -> Path:
    config = RunConfig.from_flat(
        hf_checkpoint="replaced",
        prompt_data=["replaced"],
        custom_rm_path=f"{HERE / 'letter_reward.py'}:reward_func",
        num_rollout=12,
        rollout_batch_size=8,
        n_samples_per_prompt=8,
        n_samples_per_eval_prompt=4,
        rollout_max_prompt_len=48,
        rollout_max_response_len=4,
        lr=1e-2,
        max_tokens_per_gpu=2048,
        role_deadline=120.0,
        wait_timeout=120.0,
    )
    path.write_text(config.to_yaml())
    return path


def tick(home: Path, model: Path) -> tuple[str, str]:
    """Run it once with what lies in `home`; its action and its reason."""
    environment = {
        **os.environ,
        "HOME": str(home),
        "RELAX_ARTIFACTS": str(home / "artifacts"),
        "RELAX_WORK": str(home / "work"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [
            *(Path(sys.executable).parent / "pyflyte", "run", ROOT / "workflows/retraining.py", "retraining"),
            *("--train_prompts", home / "train.parquet", "--heldout_prompts", home / "heldout.parquet"),
            *("--base_model", model, "--config", home / "run.yaml", "--name", "letters"),
        ],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 0, output[-4000:]
    (action, reason) = re.findall(r"Retraining\(action='(\w+)', reason=['\"](.+?)['\"], record=", output)[-1]
    return action, reason


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_ticks(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    store = ArtifactStore.open(str(tmp_path / "artifacts"))
    settings(tmp_path / "run.yaml")
    prompts(tmp_path / "heldout.parquet", "first", 64)

    prompts(tmp_path / "train.parquet", "first", 64)
    action, reason = tick(tmp_path, model)
    assert (action, store.aliases("letters-model")["production"]) == ("promoted", 1), reason

    assert tick(tmp_path, model) == ("skipped", "nothing has changed since letters-retraining@v1")
    assert len(store.versions("letters-run")) == 1

    # Trained for the other half, it is worse at this one.
    prompts(tmp_path / "train.parquet", "second", 64)
    action, reason = tick(tmp_path, model)
    assert (action, store.aliases("letters-model")["production"]) == ("kept", 1), reason
    assert reason.startswith("not surely better by more than the margin")
    run = store.resolve("letters-run@v2")
    assert "letters-model@v1" in [artifact.ref for artifact in store.ancestors(run)]  # from the production model

    assert tick(tmp_path, model) == ("skipped", "nothing has changed since letters-retraining@v2")
