"""Model FLOPs against what PyTorch counts in transformers' own forward passes, and utilization from them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from relax_engine.checkpoint.families import model_spec
from relax_engine.components.throughput import Throughput
from relax_engine.observe.flops import ModelFlops, peak_tflops

COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 96,
    "vocab_size": 130,
}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [1],
}
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"architectures": ["LlamaForCausalLM"]}),
    ("qwen3", {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True}),
    ("qwen3_moe", {"architectures": ["Qwen3MoeForCausalLM"], **EXPERTS}),
    (
        "qwen2_moe",
        {"architectures": ["Qwen2MoeForCausalLM"], "shared_expert_intermediate_size": 48, "head_dim": 16, **EXPERTS},
    ),
    (
        "deepseek_v3",
        {
            "architectures": ["DeepseekV3ForCausalLM"],
            **{"kv_lora_rank": 20, "q_lora_rank": 28, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16},
            **{"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "n_shared_experts": 1},
            **{"moe_intermediate_size": 32, "first_k_dense_replace": 1, "num_key_value_heads": 4, "head_dim": 8},
        },
    ),
]


@pytest.mark.parametrize(("kind", "changes"), MODELS, ids=[kind for kind, _ in MODELS])
def test_a_forward_pass_has_the_operations_that_pytorch_counts(kind: str, changes: dict[str, Any]) -> None:
    """Experts run one by one in eager mode, on the tokens that go to them."""
    config = AutoConfig.for_model(kind, **{**COMMON, **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager")
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(torch.randint(0, 130, (2, 17)), use_cache=False)
    flops = ModelFlops.of(model_spec(config.to_dict()))
    # Rotary embeddings multiply positions with frequencies; the formula leaves these few out.
    assert flops.forward(np.array([17, 17])) == pytest.approx(counter.get_total_flops(), rel=2e-3)


def test_lengths_count_one_by_one() -> None:
    flops = ModelFlops(weights=10.0, attention=3.0)
    assert flops.forward(np.array([2, 5], np.int32)) == 2 * 10 * 7 + 4 * 3 * (4 + 25)


def test_utilization_is_of_the_devices_of_the_actor(tmp_path: Path) -> None:
    config = {**AutoConfig.for_model("llama", **COMMON).to_dict(), "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    lengths = np.array([100, 50])
    forward = ModelFlops.of(model_spec(config)).forward(lengths)
    throughput = Throughput(str(tmp_path), devices=2, peak_tflops=0.5)
    throughput.trained(lengths)
    throughput.trained(lengths)
    throughput.forward("log_probs", lengths)
    throughput.forward("ref_log_probs", lengths)
    metrics = throughput.take({"actor_train": 4.0, "log_probs": 0.5})
    assert metrics == {
        "perf/actor_train_tflops": pytest.approx(2 * 3 * forward / 1e12 / 4.0 / 2),
        "perf/mfu/actor_train": pytest.approx(2 * 3 * forward / 1e12 / 4.0 / 2 / 0.5),
        "perf/log_probs_tflops": pytest.approx(forward / 1e12 / 0.5 / 2),
        "perf/mfu/actor_infer": pytest.approx(forward / 1e12 / 0.5 / 2 / 0.5),
        "perf/device_peak_tflops": 0.5,
    }
    assert throughput.take({"actor_train": 4.0}) == {"perf/device_peak_tflops": 0.5}


def test_a_peak_that_nobody_published_gives_no_utilization(tmp_path: Path) -> None:
    config = {**AutoConfig.for_model("llama", **COMMON).to_dict(), "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    throughput = Throughput(str(tmp_path), devices=1, peak_tflops=peak_tflops(None))
    throughput.trained(np.array([10]))
    assert set(throughput.take({"actor_train": 1.0})) == {"perf/actor_train_tflops"}


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H200", 989.0),
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA GB200", 2500.0),
        ("NVIDIA H20", 148.0),
        ("Some CPU", None),
    ],
)
def test_published_peaks(device: str, peak: float | None) -> None:
    assert peak_tflops(device) == peak
