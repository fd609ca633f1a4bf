"""Low-rank adapters in whole runs: reference, engines that serve merged weights, checkpoints, exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relax_engine.checkpoint import export_checkpoint
from relax_engine.checkpoint.hf_reader import HfReader
from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics

STEPS = 3
ADAPTERS: dict[str, Any] = {
    "lora_rank": 8,
    "lora_alpha": 16.0,
    "lora_target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
    "use_kl_loss": True,
    "kl_loss_coef": 0.01,
    "weight_sync_mode": "delta",
}


@pytest.mark.long
def test_adapters_are_trained_saved_exported_and_go_on(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    config = tiny.config(
        tmp_path / "run",
        colocate=True,
        resource={"actor": [1, 1], "rollout": [1, 1]},
        num_rollout=STEPS,
        save=str(tmp_path / "saved"),
        save_interval=1,
        save_hf=str(tmp_path / "hf_{rollout_id}"),
        **ADAPTERS,
    )
    assert train(config).steps == STEPS
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert all(record["train/grad_norm"] > 0 for record in records)
    assert records[0]["train/kl_loss"] == 0.0
    assert records[-1]["train/kl_loss"] > 0.0
    export_checkpoint(tmp_path / "saved", tmp_path / "peft", origin_hf_dir=tiny.model, adapters_only=True)
    merged, base = HfReader(tmp_path / f"hf_{STEPS - 1}"), HfReader(tiny.model)
    changed = {name for name in base.names() if not (merged.tensor(name).float() == base.tensor(name)).all()}
    assert {name.split(".")[-2] for name in changed} >= {"q_proj", "o_proj", "gate_proj", "down_proj"}
    again = config.replace(run_dir=str(tmp_path / "again"), load=str(tmp_path / "saved"), num_rollout=STEPS + 1)
    assert train(again).new_steps == 1
    fresh = config.replace(
        run_dir=str(tmp_path / "fresh"), lora_load=str(tmp_path / "peft"), save=None, save_interval=None,
        save_hf=None, num_rollout=1,
    )  # fmt: skip
    assert train(fresh).steps == 1
    (record,) = read_metrics(tmp_path / "fresh" / "metrics.jsonl")
    assert record["train/kl_loss"] > 0.0


@pytest.mark.long
def test_adapters_reach_the_other_roles_merged(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    config = tiny.config(
        tmp_path,
        fully_async=True,
        resource={"actor": [1, 1], "rollout": [1, 1], "actor_fwd": [1, 1], "reference": [1, 1], "advantages": [1, 0]},
        num_rollout=STEPS,
        **ADAPTERS,
    )
    assert train(config).steps == STEPS
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert all(record["train/grad_norm"] > 0 for record in records)
