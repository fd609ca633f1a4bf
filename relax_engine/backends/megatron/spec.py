"""The layer specification: Megatron's layers with our norm and core attention plugged in.

What lives here: the modules that Megatron's plain (non Transformer Engine) layers lack, given to it
through its own extension point, `ModuleSpec`. `RMSNorm` allows sequence parallelism; `PackedAttention`
takes packed sequences (THD) and applies RoPE itself; `SwiGlu` saves memory passes. What does not:
the rest of the transformer layer, which is Megatron's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch import Tensor

from relax_engine.backends.megatron.fused import rms_norm, swiglu
from relax_engine.backends.megatron.heads import cell_of_token, token_of_cell
from relax_engine.backends.megatron.packing import Bucket
from relax_engine.backends.megatron.rope import RotaryTable, rotate
from relax_engine.backends.megatron.rows import RowGather
from relax_engine.backends.megatron.sharing import Compact
from relax_engine.backends.megatron.short_attention import pays, short_attention


@dataclass
class PackedSequences(PackedSeqParams):
    """One micro-batch as the attention layers see it; the same object for all layers.

    The rectangles attention works on, the row selections between `[tokens, heads, d]` and
    `[rows, heads, length, d]` of the rectangles, and the RoPE table of each token.
    """

    buckets: tuple[Bucket, ...] = ()
    queries: RowGather | None = None
    keys: RowGather | None = None
    outputs: RowGather | None = None
    rotary: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(
        cls, compact: Compact, rotary: RotaryTable, device: torch.device, *, heads: int, groups: int
    ) -> PackedSequences:
        """Move the index arithmetic of `compact` to `device`; `heads` and `groups` are those of this rank."""
        positions = torch.from_numpy(compact.positions).to(device)
        tables = rotary.upto(max(bucket.length for bucket in compact.buckets))
        tokens, cells = len(compact.tokens), len(compact.to_padded)
        return cls(
            qkv_format="thd",
            buckets=compact.buckets,
            queries=RowGather(token_of_cell(compact, heads), tokens * heads, device),
            keys=RowGather(token_of_cell(compact, groups), tokens * groups, device),
            outputs=RowGather(cell_of_token(compact, heads), cells * heads, device),
            rotary=(tables[0].index_select(0, positions), tables[1].index_select(0, positions)),
        )


class _Rotate(torch.autograd.Function):
    """RoPE; the gradient is the rotation by the opposite angle."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return rotate(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return rotate(grads[0], cos, -sin), None, None


class PackedAttention(MegatronModule):
    """Causal attention over packed sequences, with RoPE and grouped key/value heads.

    Each group of similar lengths is one rectangle and one call of scaled dot-product attention:
    right padding needs no mask, as no token attends to what comes after it.
    """

    def __init__(self, config: TransformerConfig, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__(config=config)
        self.softmax_scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        *,
        packed_seq_params: PackedSequences,
        **_: Any,
    ) -> Tensor:
        """Attend.

        Args:
            query: `[tokens, heads, d]`. key, value: `[tokens, groups, d]`.
            attention_mask: must be None; sequences are causal and do not see each other.

        Returns:
            `[tokens, heads * d]`.
        """
        packed = packed_seq_params
        assert packed.rotary is not None
        assert packed.queries is not None
        assert packed.keys is not None
        assert packed.outputs is not None
        query, key = _Rotate.apply(query, *packed.rotary), _Rotate.apply(key, *packed.rotary)
        q, k, v = (x.flatten(0, 1) for x in (query, key, value))
        q, k, v = packed.queries(q), packed.keys(k), packed.keys(v)
        cells = [bucket.rows * bucket.length for bucket in packed.buckets]
        parts = (_split(x, cells) for x in (q, k, v))
        outputs = [self._attend(*part) for part in zip(*parts, packed.buckets, strict=True)]
        output = packed.outputs(outputs[0] if len(outputs) == 1 else torch.cat(outputs))
        return output.view(len(query), -1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bucket: Bucket) -> Tensor:
        query, key, value = (x.view(bucket.rows, -1, bucket.length, x.shape[-1]) for x in (query, key, value))
        scale = self.softmax_scale or query.shape[-1] ** -0.5
        if pays(query):
            output = short_attention(query, key, value, scale=scale)
        else:
            gqa = query.shape[1] != key.shape[1]
            output = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=gqa)
        return output.reshape(-1, query.shape[-1])


def _split(x: Tensor, cells: Sequence[int]) -> Sequence[Tensor]:
    """Cut `[sum of cells * heads, d]` between the rectangles."""
    heads = len(x) // sum(cells)
    return (x,) if len(cells) == 1 else x.split([count * heads for count in cells])


class RMSNorm(torch.nn.Module):
    """Root-mean-square norm over the last dimension.

    Under sequence parallelism each rank sees its share of the tokens, so the weight is marked for
    Megatron's gradient all-reduce over tensor-parallel ranks.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """The normalised `x`, of its shape and dtype."""
        return rms_norm(x, self.weight, self.eps)


class SwiGlu(MegatronModule):
    """The MLP's activation over the fused gate and up projections."""

    def forward(self, gate_up: Tensor) -> Tensor:
        """`[tokens, 1, 2 f]` to `[tokens, 1, f]`."""
        return swiglu(gate_up)


def block_spec(config: TransformerConfig) -> TransformerBlockSubmodules:
    """The specification of all layers of `GPTModel`."""
    layer: ModuleSpec = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    submodules = layer.submodules
    submodules.input_layernorm = submodules.pre_mlp_layernorm = RMSNorm
    submodules.mlp.submodules.activation_func = SwiGlu
    attention = submodules.self_attention.submodules
    attention.core_attention = PackedAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return TransformerBlockSubmodules(layer_specs=[layer] * config.num_layers, layer_norm=RMSNorm)
