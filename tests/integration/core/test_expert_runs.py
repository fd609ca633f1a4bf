"""A mixture of experts in whole runs: engine, trainer and weight transfer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from relax_engine.checkpoint import export_checkpoint
from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics

STEPS = 3


def _with_experts(model: Path, directory: Path, family: str, **sizes: Any) -> Path:
    """A random model of two layers with the tokenizer and the outer sizes of the tiny one."""
    import torch
    import transformers

    shutil.copytree(model, directory, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    dense = transformers.AutoConfig.from_pretrained(model).to_dict()
    names = (
        "vocab_size",
        "hidden_size",
        "num_attention_heads",
        "max_position_embeddings",
        "eos_token_id",
        "pad_token_id",
    )
    config = getattr(transformers, f"{family}Config")(
        **{name: dense[name] for name in names}, num_hidden_layers=2, **sizes
    )
    torch.manual_seed(0)
    getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def experts(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with four experts in every layer."""
    return _with_experts(
        tiny.model,
        tmp_path_factory.mktemp("experts") / "model",
        "Qwen3Moe",
        num_key_value_heads=2,
        head_dim=32,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        norm_topk_prob=True,
        tie_word_embeddings=True,
    )


@pytest.fixture(scope="module")
def deepseek(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DeepSeek-V3: latent attention, a dense layer, and one of four experts in two groups with a shared one."""
    return _with_experts(
        tiny.model,
        tmp_path_factory.mktemp("deepseek") / "model",
        "DeepseekV3",
        intermediate_size=128,
        num_key_value_heads=4,
        kv_lora_rank=32,
        q_lora_rank=48,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=24,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        n_shared_experts=1,
        first_k_dense_replace=1,
        moe_intermediate_size=64,
    )


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


@pytest.mark.long
@pytest.mark.parametrize("mode", ["colocate", "fully_async"])
def test_the_trainers_own_experts_are_replayed(
    ray_cluster: None, tiny: Any, experts: Path, mode: str, tmp_path: Path
) -> None:
    """Recorded in process or by `actor_fwd`. The second step of a rollout, half of its rows, finds routers moved."""
    roles = {"actor": [1, 2], "rollout": [1, 1]}
    config = tiny.config(
        tmp_path,
        hf_checkpoint=str(experts),
        **{mode: True},
        resource=roles if mode == "colocate" else roles | {"actor_fwd": [1, 1], "advantages": [1, 0]},
        expert_model_parallel_size=2,
        ref_actor_config={"expert_model_parallel_size": 1},
        use_routing_replay=True,
        num_steps_per_rollout=2,
        num_rollout=STEPS,
    )
    assert train(config).steps == STEPS
    changed = [record["train/routing_replay/changed"] for record in read_metrics(tmp_path / "metrics.jsonl")]
    assert len(changed) == STEPS
    assert 0 < max(changed) < 0.5


@pytest.mark.long
def test_deepseek_learns_what_its_engine_samples(ray_cluster: None, tiny: Any, deepseek: Path, tmp_path: Path) -> None:
    """Rollout, trainer over two ranks and weight transfer agree, and transformers reads what came of it."""
    from transformers import AutoModelForCausalLM

    config = tiny.config(
        tmp_path / "run",
        hf_checkpoint=str(deepseek),
        colocate=True,
        resource={"actor": [1, 2], "rollout": [1, 1]},
        tensor_model_parallel_size=2,
        sequence_parallel=True,
        expert_model_parallel_size=2,
        expert_tensor_parallel_size=1,
        save=str(tmp_path / "saved"),
        num_rollout=STEPS,
    )
    result = train(config)
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert len(records) == STEPS
    for record in records:
        assert 0 < record["train/rollout_logprob_gap"] < 1e-3
        assert record["train/grad_norm"] > 0
    exported = export_checkpoint(str(result.checkpoint_dir), tmp_path / "hf", origin_hf_dir=deepseek)
    before, after = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (deepseek, exported.path))
    assert before.keys() == after.keys()
    still = {name for name, tensor in before.items() if tensor.equal(after[name])}
    assert all("e_score_correction_bias" in name or "layernorm" in name for name in still)
