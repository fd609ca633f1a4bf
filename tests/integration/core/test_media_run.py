"""Models that see and hear in whole runs: processor, engine, stream, trainer and weight transfer agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.tiny_media import Family, make_model
from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics

STEPS = 2


def _prompts(folder: Path) -> Path:
    """Prompts with pictures of unequal sizes: one, two or none."""
    from PIL import Image

    random = np.random.default_rng(0)
    rows = []
    for row in range(12):
        names = [f"{row}_{number}.png" for number in range(row % 3)]
        for name in names:
            height, width = (8 * random.integers(2, 9, 2)).tolist()
            Image.fromarray(random.integers(0, 255, (height, width, 3), dtype=np.uint8)).save(folder / name)
        rows.append({"prompt": "look " + "<image>" * len(names), "images": names, "label": "1"})
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def _run(tiny: Any, folder: Path, family: Family, **changes: Any) -> list[dict[str, float]]:
    """The metrics of a run of two steps on pictures."""
    config = tiny.config(
        folder / "run",
        hf_checkpoint=str(make_model(folder / "model", family)),
        prompt_data=[str(_prompts(folder))],
        multimodal_keys={"image": "images"},
        image_min_token_num=1,
        rollout_max_prompt_len=256,
        num_rollout=STEPS,
        **changes,
    )
    assert train(config).steps == STEPS
    records: list[dict[str, float]] = read_metrics(folder / "run" / "metrics.jsonl")
    assert len(records) == STEPS
    return records


def test_pictures_in_colocate(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    records = _run(tiny, tmp_path, "qwen2_5_vl", colocate=True, resource={"actor": [1, 1], "rollout": [1, 1]})
    for record in records:
        assert record["rollout/image_count/max"] >= 1
        assert 0 < record["train/rollout_logprob_gap"] < 1e-3, "also in the second step, by the weights that were sent"
        assert record["train/grad_norm"] > 0


@pytest.mark.long
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_vl_moe", "qwen3_omni"])
def test_pictures_in_every_forward_role(ray_cluster: None, tiny: Any, family: Family, tmp_path: Path) -> None:
    records = _run(
        tiny,
        tmp_path,
        family,
        fully_async=True,
        resource={"actor": [1, 2], "rollout": [1, 1], "actor_fwd": [1, 1], "reference": [1, 1], "advantages": [1, 0]},
        tensor_model_parallel_size=2,
        sequence_parallel=True,
        ref_actor_config={"tensor_model_parallel_size": 1, "sequence_parallel": False},
        max_staleness=0,
        use_kl_loss=True,
        kl_loss_coef=0.01,
        save_debug_train_data=str(tmp_path / "steps" / "{rollout_id}.npz"),
    )
    for record in records:
        assert 0 < record["train/rollout_logprob_gap"] < 1e-3
        assert record["train/grad_norm"] > 0
    assert records[0]["train/kl_loss"] < 1e-6 < records[-1]["train/kl_loss"]
