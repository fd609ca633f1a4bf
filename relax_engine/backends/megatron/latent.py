"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) between Megatron's parts.

What lives here: the projections from hidden states to queries, keys and values, in Megatron's names. What does not:
attention itself (`spec.py`), the output projection and the layer, which are Megatron's.

Megatron's own `MLASelfAttention` is not used: it takes positions from the boundaries of packed sequences, which
micro-batches with shared prompts do not have, and without Transformer Engine it cuts the projections to latent vectors
over tensor-parallel ranks, which leaves each rank's rotary key without the gradient of the other ranks' heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer import MLATransformerConfig
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.multi_latent_attention import MLASelfAttentionSubmodules, MultiLatentAttention
from torch import Tensor

from relax_engine.backends.megatron import products
from relax_engine.backends.megatron.rms_norm import RMSNorm

if TYPE_CHECKING:
    from relax_engine.backends.megatron.spec import PackedSequences

NORM_EPS = 1e-6
"""Of the norms of latent vectors, whatever that of hidden states is, as in transformers."""


class ToLatent(torch.nn.Module):
    """A projection that every tensor-parallel rank has whole, of the tokens that the rank has."""

    def __init__(self, config: MLATransformerConfig, outputs: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(outputs, config.hidden_size, dtype=config.params_dtype))
        config.init_method(self.weight)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """`[..., hidden]` to `[..., outputs]`."""
        if x.dtype == torch.float32 and x.device.type == "cpu" and products.available():
            return products.linear(x, self.weight)
        return torch.nn.functional.linear(x, self.weight)


class LatentAttention(MultiLatentAttention):
    """Attention whose keys and values are projections of a small vector per token."""

    def __init__(
        self,
        config: MLATransformerConfig,
        submodules: MLASelfAttentionSubmodules,
        layer_number: int,
        attn_mask_type: AttnMaskType = AttnMaskType.causal,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        *,
        softmax_scale: float,
    ) -> None:
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups()
        super().__init__(config, submodules, layer_number, attn_mask_type, "self", cp_comm_type, groups)
        self.core_attention.softmax_scale = softmax_scale
        heads, queries = config.num_attention_heads, config.num_attention_heads * self.q_head_dim
        if config.q_lora_rank is None:
            self.linear_q_proj = self._by_heads(config.hidden_size, queries)
        else:
            self.linear_q_down_proj = ToLatent(config, config.q_lora_rank)
            self.q_layernorm = RMSNorm(config, config.q_lora_rank, NORM_EPS)
            self.linear_q_up_proj = self._by_heads(config.q_lora_rank, queries)
        self.linear_kv_down_proj = ToLatent(config, config.kv_lora_rank + config.qk_pos_emb_head_dim)
        self.kv_layernorm = RMSNorm(config, config.kv_lora_rank, NORM_EPS)
        self.linear_kv_up_proj = self._by_heads(config.kv_lora_rank, heads * (config.qk_head_dim + config.v_head_dim))

    def _by_heads(self, inputs: int, outputs: int) -> ColumnParallelLinear:
        """A projection cut by heads over tensor-parallel ranks."""
        return ColumnParallelLinear(
            inputs,
            outputs,
            config=self.config,
            init_method=self.config.init_method,
            bias=False,
            gather_output=False,
            skip_bias_add=False,
            tp_group=self.pg_collection.tp,
        )

    def get_query_key_value_tensors(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        position_ids: Tensor | None = None,
        packed_seq_params: PackedSequences | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
        """Of hidden states `[tokens, 1, hidden]` (this rank's, under sequence parallelism) the rotated queries and keys
        `[all tokens, heads here, d]`, values `[all tokens, heads here, d_v]`, and the latent vectors."""
        config, heads = self.config, self.num_attention_heads_per_partition
        assert packed_seq_params is not None
        assert packed_seq_params.rotary is not None
        latent, rotary_key = self.linear_kv_down_proj(hidden_states).split(
            [config.kv_lora_rank, config.qk_pos_emb_head_dim], dim=-1
        )
        latent = self.kv_layernorm(latent)
        of_queries = None
        if config.q_lora_rank is None:
            query, _ = self.linear_q_proj(hidden_states)
        else:
            of_queries = self.q_layernorm(self.linear_q_down_proj(hidden_states))
            query, _ = self.linear_q_up_proj(of_queries)
        key_value, _ = self.linear_kv_up_proj(latent)
        query = query.view(len(query), heads, -1)
        key_value = key_value.view(len(key_value), heads, -1)
        plain, rotary = query.split([config.qk_head_dim, config.qk_pos_emb_head_dim], dim=-1)
        query = torch.cat([plain, packed_seq_params.rotary(rotary)], dim=-1)
        rotary_key = packed_seq_params.rotary(self._on_all_heads(rotary_key))
        plain, value = key_value.split([config.qk_head_dim, config.v_head_dim], dim=-1)
        key = torch.cat([plain, rotary_key.expand(-1, heads, -1)], dim=-1)
        return query, key, value, of_queries, latent

    def _on_all_heads(self, rotary_key: Tensor) -> Tensor:
        """The part of the key that all heads share, `[all tokens, 1, d]`; its gradient is the sum over all ranks'.

        Ranks that share heads share the sequence, too: these models have experts, which need it.
        """
        group = self.pg_collection.tp
        return rotary_key if group.size() == 1 else gather_from_sequence_parallel_region(rotary_key, group=group)
