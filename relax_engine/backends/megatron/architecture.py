"""Megatron's configuration of a model: the architecture, the layout and what is left out on every device.

What lives here: the translation of `ModelSpec`, `ParallelLayout` and settings into `TransformerConfig`. What does not:
modules (`spec.py`, `model.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer import MLATransformerConfig, TransformerConfig

from relax_engine.backends.megatron.device import compute_device
from relax_engine.backends.megatron.settings import RecomputeSettings
from relax_engine.checkpoint.model_spec import ExpertSpec, LatentSpec, ModelSpec
from relax_engine.config.layout import ParallelLayout


def transformer_config(
    spec: ModelSpec, layout: ParallelLayout, dtype: torch.dtype, recompute: RecomputeSettings
) -> TransformerConfig:
    """The configuration of every layer on this rank."""
    kind = TransformerConfig if spec.latent is None else MLATransformerConfig
    return kind(
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        ffn_hidden_size=spec.ffn_hidden_size,
        num_attention_heads=spec.num_attention_heads,
        num_query_groups=spec.num_query_groups,
        kv_channels=spec.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=spec.rms_norm_eps,
        qk_layernorm=spec.qk_norm,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        use_te_activation_func=True,  # take the activation from the layer specification
        add_bias_linear=False,
        add_qkv_bias=spec.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        use_cpu_initialization=compute_device().type == "cpu",
        # The loss is a plain sum over all ranks' tokens: gradients are added up, never averaged.
        calculate_per_token_loss=True,
        # Fusions below are compiled or CUDA-only.
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        recompute_granularity=recompute.granularity,
        recompute_method=recompute.method,
        recompute_num_layers=recompute.num_layers,
        **_parallelism(layout),
        **({} if spec.experts is None else _experts(spec, spec.experts)),
        **({} if spec.latent is None else _latent(spec.latent)),
    )


def _latent(latent: LatentSpec) -> dict[str, Any]:
    return {
        "q_lora_rank": latent.q_rank,
        "kv_lora_rank": latent.kv_rank,
        "qk_head_dim": latent.plain_dim,
        "qk_pos_emb_head_dim": latent.rotary_dim,
        "v_head_dim": latent.value_dim,
        "rope_type": "rope",  # a table that is not used: `LatentAttention` has its own
    }


def _parallelism(layout: ParallelLayout) -> dict[str, Any]:
    return {
        "tensor_model_parallel_size": layout.tensor,
        "sequence_parallel": layout.sequence_parallel,
        "pipeline_model_parallel_size": layout.pipeline,
        "virtual_pipeline_model_parallel_size": layout.virtual if layout.virtual > 1 else None,
        "num_layers_in_first_pipeline_stage": layout.first_layers,
        "num_layers_in_last_pipeline_stage": layout.last_layers,
        # Interleaved stages of two ranks exchange both ways at once, which separate messages alone keep apart.
        "overlap_p2p_comm": layout.virtual > 1,
        "batch_p2p_comm": layout.virtual == 1,
        "variable_seq_lengths": layout.pipeline > 1,  # micro-batches differ in their number of tokens
        "context_parallel_size": layout.context,
        "expert_model_parallel_size": layout.expert,
        "expert_tensor_parallel_size": layout.experts_tensor,
        "moe_token_dispatcher_type": "alltoall",
    }


def _experts(spec: ModelSpec, experts: ExpertSpec) -> dict[str, Any]:
    kinds = [int(spec.has_experts(layer)) for layer in range(spec.num_layers)]
    return {
        "num_moe_experts": experts.count,
        "moe_ffn_hidden_size": experts.ffn_hidden_size,
        "moe_router_topk": experts.top_k,
        "moe_router_pre_softmax": True,  # Megatron asks for it with one expert for each token
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "none",  # `experts.Router` has its own, and its own choice
        "moe_shared_expert_intermediate_size": experts.shared_ffn_hidden_size,
        "moe_shared_expert_gate": experts.shared_gate,
        "moe_layer_freq": kinds if experts.dense_layers else 1,
    }
