"""A mixture of experts in whole runs: engine, trainer and weight transfer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics

STEPS = 3


@pytest.fixture(scope="module")
def experts(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with four experts in every layer."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    directory: Path = tmp_path_factory.mktemp("experts") / "model"
    shutil.copytree(tiny.model, directory, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    sizes = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
        "num_hidden_layers": 2,
    }
    dense = Qwen3MoeConfig.from_pretrained(tiny.model).to_dict()
    kept = {name: dense[name] for name in ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads")}
    kept |= {name: dense[name] for name in ("head_dim", "max_position_embeddings", "eos_token_id", "pad_token_id")}
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**kept, **sizes, tie_word_embeddings=True)).save_pretrained(directory)
    return directory


@pytest.mark.long
def test_colocate_over_expert_parallel_ranks(ray_cluster: None, tiny: Any, experts: Path, tmp_path: Path) -> None:
    config = tiny.config(
        tmp_path,
        hf_checkpoint=str(experts),
        colocate=True,
        resource={"actor": [1, 2], "rollout": [1, 1]},
        expert_model_parallel_size=2,
        moe_aux_loss_coeff=0.01,
        num_rollout=STEPS,
    )
    assert train(config).steps == STEPS
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert len(records) == STEPS
    assert all(record["train/grad_norm"] > 0 for record in records)


@pytest.mark.long
def test_the_rollouts_experts_are_replayed(ray_cluster: None, tiny: Any, experts: Path, tmp_path: Path) -> None:
    """Through samples, stream and forward roles, with responses that go on under new weights; and through a restart."""
    config = tiny.config(
        tmp_path / "run",
        hf_checkpoint=str(experts),
        fully_async=True,
        resource={"actor": [1, 1], "rollout": [1, 1], "actor_fwd": [1, 1], "reference": [1, 1], "advantages": [1, 0]},
        max_staleness=1,
        partial_rollout=True,
        use_rollout_routing_replay=True,
        use_kl_loss=True,
        kl_loss_coef=0.01,
        save=str(tmp_path / "saved"),
        save_interval=1,
        num_rollout=STEPS,
    )
    assert train(config).steps == STEPS
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert len(records) == STEPS
    assert all(record["train/grad_norm"] > 0 for record in records)
    again = config.replace(run_dir=str(tmp_path / "again"), load=str(tmp_path / "saved"), num_rollout=STEPS + 1)
    assert train(again).new_steps == 1
