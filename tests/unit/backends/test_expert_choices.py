"""The choice of experts against the routers of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from relax_engine.backends.routing import choose_experts, expert_scores, expert_weights
from relax_engine.checkpoint.families import model_spec

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 8,
}
GROUPS = {"n_routed_experts": 12, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "num_attention_heads": 4}
CASES = [
    ("Qwen3Moe", Qwen3MoeTopKRouter, {"num_experts": 12, "norm_topk_prob": True}),
    ("Qwen3Moe", Qwen3MoeTopKRouter, {"num_experts": 12, "norm_topk_prob": False}),
    ("DeepseekV2", DeepseekV2TopkRouter, {**GROUPS, "topk_method": "greedy"}),
    ("DeepseekV2", DeepseekV2TopkRouter, {**GROUPS, "topk_method": "group_limited_greedy"}),
    ("DeepseekV3", DeepseekV3TopkRouter, {**GROUPS, "norm_topk_prob": True}),
    ("DeepseekV3", DeepseekV3TopkRouter, {**GROUPS, "norm_topk_prob": False}),
    ("DeepseekV3", DeepseekV3TopkRouter, {**GROUPS, "n_group": 1, "topk_group": 1}),
]


@pytest.mark.parametrize(("family", "router", "options"), CASES)
def test_experts_and_weights_equal_transformers(family: str, router: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES, **options)
    reference = router(config)
    torch.nn.init.normal_(reference.weight)
    bias = getattr(reference, "e_score_correction_bias", None)
    if bias is not None:
        bias.normal_(0.0, 0.3)
    logits, weights, chosen = reference(torch.randn(200, 16))[:3]
    rule = model_spec({**config.to_dict(), "architectures": [f"{family}ForCausalLM"]}).experts
    assert rule is not None
    scores = expert_scores(logits, rule)
    picked = choose_experts(scores, rule, bias)
    order, expected_order = picked.sort(dim=-1), chosen.sort(dim=-1)
    assert torch.equal(order.values, expected_order.values)
    actual = expert_weights(scores, picked, rule).gather(1, order.indices)
    torch.testing.assert_close(actual, weights.gather(1, expected_order.indices), rtol=1e-6, atol=1e-7)
