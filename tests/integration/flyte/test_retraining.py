"""Ticks of the scheduled retraining: what is new is trained, what is not new is not, what is worse is not promoted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from letters import prompts, pyflyte, settings

from examples.tiny_math.make_model import make_model
from relax_engine.lineage import ArtifactStore


def tick(home: Path, model: Path) -> tuple[str, str]:
    """Run it once with what lies in `home`; its action and its reason."""
    output = pyflyte(
        home,
        "workflows/retraining.py",
        "retraining",
        *("--train_prompts", home / "train.parquet", "--heldout_prompts", home / "heldout.parquet"),
        *("--base_model", model, "--config", home / "run.yaml", "--name", "letters"),
    )
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
