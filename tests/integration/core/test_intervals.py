"""What happens every k rollouts only: moving the reference, and publishing weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from relax_engine.core.result import RunResult
from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics

SAMPLES = 16
RESOURCE = {"actor": [1, 2], "rollout": [1, 1], "reference": [1, 1], "advantages": [1, 0]}


def kl_of(result: RunResult) -> list[float]:
    return [record["train/kl_loss"] for record in read_metrics(Path(result.run_dir) / "metrics.jsonl")]


@pytest.mark.long
def test_a_reference_role_moves_and_is_found_again_in_a_checkpoint(
    ray_cluster: None, tiny: Any, tmp_path: Path
) -> None:
    """Two tensor-parallel actor ranks and a reference of one: `--ref-actor-config` gives it its own layout.

    Where the reference has just moved, it is the policy and the KL is 0: at step 2, after an update at step 1, and
    likewise in a run that starts there from the checkpoint.
    """
    flags = {
        "fully_async": True,
        "resource": RESOURCE,
        "tensor_model_parallel_size": 2,
        "ref_actor_config": {"tensor_model_parallel_size": 1},
        "use_kl_loss": True,
        "kl_loss_coef": 0.05,
        "kl_loss_type": "k3",  # quadratic, so that two layouts' rounding does not show
        "ref_update_interval": 2,
        "save_interval": 2,
    }
    whole = train(tiny.config(tmp_path / "whole", save=str(tmp_path / "ckpt"), **flags))
    first, moved, again = kl_of(whole)
    assert [first, again] == pytest.approx([0.0, 0.0], abs=1e-7)
    assert abs(moved) > 1e-6
    assert (tmp_path / "ckpt/iter_0000002/reference/.metadata").is_file()

    shutil.copytree(tmp_path / "ckpt/iter_0000002", tmp_path / "middle/iter_0000002")
    places = {"load": str(tmp_path / "middle"), "save": str(tmp_path / "ckpt2")}
    resumed = train(tiny.config(tmp_path / "resumed", **places, **flags))
    # The first line of a resumed run is that of the checkpoint's own step.
    assert resumed.new_steps == 1
    assert kl_of(resumed)[1:] == pytest.approx([0.0], abs=1e-7)


@pytest.mark.long
def test_colocate_engines_go_on_with_the_weights_they_have(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    """The second rollout is sampled with version 0 and trained at version 1; nothing is dropped for it."""
    result = train(tiny.config(tmp_path, num_rollout=2, update_weights_interval=2))
    assert result.staleness_histogram == {0: SAMPLES, 1: SAMPLES}
    timeline = json.loads((tmp_path / "timeline.json").read_text())
    assert sum(phase["name"] == "weight_sync" for phase in timeline) == 2
    assert result.metrics["weight_sync/version"] == 2
    assert result.metrics["weight_sync/logprob_max_abs_diff"] < 1e-3
