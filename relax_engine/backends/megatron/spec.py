"""The layer specification: Megatron's layers with our norm and core attention plugged in.

What lives here: the modules that Megatron's plain (non Transformer Engine) layers lack, given to it
through its own extension point, `ModuleSpec`. `PackedAttention` takes packed sequences (THD), `RotaryAttention`
applies RoPE before; `SwiGlu` saves memory passes. What does not: norms (`rms_norm.py`), latent attention (`latent.py`),
unusual layers (`layer.py`), and the rest of the transformer layer, which is Megatron's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from relax_engine.backends.megatron.context import Piece, Share
from relax_engine.backends.megatron.experts import RoutedLayer, Router, Routing
from relax_engine.backends.megatron.fused import swiglu
from relax_engine.backends.megatron.heads import cell_of_token, token_of_cell
from relax_engine.backends.megatron.latent import LatentAttention
from relax_engine.backends.megatron.layer import OutputWithBias, SandwichLayer
from relax_engine.backends.megatron.media_model import MediaInput
from relax_engine.backends.megatron.mrope import MultimodalRotary
from relax_engine.backends.megatron.rms_norm import RMSNorm
from relax_engine.backends.megatron.rope import RotaryTable, Rotation
from relax_engine.backends.megatron.rows import RowGather
from relax_engine.backends.megatron.short_attention import pays, short_attention
from relax_engine.checkpoint.model_spec import ModelSpec


@dataclass
class PackedSequences(PackedSeqParams):
    """One micro-batch as the layers see it; the same object for all layers.

    The rectangles attention works on, the row selections between `[tokens, heads, d]` and
    `[rows, heads, length, d]` of the rectangles, the RoPE table of each token, what the experts' routers need, media,
    and what their encoders add to the first layers (known once they are encoded).
    """

    pieces: tuple[Piece, ...] = ()
    queries: RowGather | None = None
    keys: RowGather | None = None
    outputs: RowGather | None = None
    rotary: Rotation | None = None
    routing: Routing | None = None
    media: MediaInput | None = None
    deepstack: tuple[Tensor, ...] = ()

    @classmethod
    def of(
        cls,
        share: Share,
        rotary: RotaryTable | MultimodalRotary,
        device: torch.device,
        *,
        heads: int,
        groups: int,
        context: int,
        routing: Routing | None,
        media: MediaInput | None,
    ) -> PackedSequences:
        """Move the index arithmetic of `share` to `device`.

        `heads` and `groups` are those of this rank; the keys of `context` ranks are gathered.
        """
        tokens, cells = len(share.tokens), len(share.query_cells)
        asked = [(piece.rows, piece.queries) for piece in share.pieces]
        seen = [(piece.rows, piece.keys) for piece in share.pieces]
        return cls(
            qkv_format="thd",
            pieces=share.pieces,
            queries=RowGather(token_of_cell(asked, share.query_cells, heads), tokens * heads, device),
            keys=RowGather(token_of_cell(seen, share.key_cells, groups), context * tokens * groups, device),
            outputs=RowGather(cell_of_token(asked, share.output_cells, heads), cells * heads, device),
            rotary=rotary.at(share.positions),
            routing=routing,
            media=media,
        )


class PackedAttention(MegatronModule):
    """Causal attention over packed sequences with grouped key/value heads.

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
        assert packed.queries is not None
        assert packed.keys is not None
        assert packed.outputs is not None
        if self.config.context_parallel_size > 1:
            key, value = self._of_all_ranks(key, value)
        q, k, v = (x.flatten(0, 1) for x in (query, key, value))
        q, k, v = packed.queries(q), packed.keys(k), packed.keys(v)
        asked = [piece.rows * piece.queries for piece in packed.pieces]
        seen = [piece.rows * piece.keys for piece in packed.pieces]
        parts = (_split(q, asked), _split(k, seen), _split(v, seen))
        outputs = [self._attend(*part) for part in zip(*parts, packed.pieces, strict=True)]
        output = packed.outputs(outputs[0] if len(outputs) == 1 else torch.cat(outputs))
        return output.view(len(query), -1)

    def _of_all_ranks(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all context-parallel ranks, one rank's tokens after another's."""
        group = parallel_state.get_context_parallel_group()
        both = gather_from_sequence_parallel_region(torch.cat([key, value], dim=-1), group=group)
        key, value = both.split([key.shape[-1], value.shape[-1]], dim=-1)
        return key, value

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, piece: Piece) -> Tensor:
        query = query.view(piece.rows, -1, piece.queries, query.shape[-1])
        key, value = (x.view(piece.rows, -1, piece.keys, x.shape[-1]) for x in (key, value))
        scale = self.softmax_scale or query.shape[-1] ** -0.5
        whole = piece.queries == piece.keys
        if whole and pays(query):
            output = short_attention(query, key, value, scale=scale)
        else:
            gqa = query.shape[1] != key.shape[1]
            mask = None if whole else causal_lower_right(piece.queries, piece.keys)
            output = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=whole, scale=scale, enable_gqa=gqa
            )
        return output.reshape(-1, value.shape[-1])


class RotaryAttention(PackedAttention):
    """`PackedAttention` of queries and keys that it rotates."""

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
        """Rotate by the tokens' positions, then attend."""
        rotary = packed_seq_params.rotary
        assert rotary is not None
        return super().forward(rotary(query), rotary(key), value, attention_mask, packed_seq_params=packed_seq_params)


def _split(x: Tensor, cells: Sequence[int]) -> Sequence[Tensor]:
    """Cut `[sum of cells * heads, d]` between the rectangles."""
    heads = len(x) // sum(cells)
    return (x,) if len(cells) == 1 else x.split([count * heads for count in cells])


class SwiGlu(MegatronModule):
    """The MLP's activation over the fused gate and up projections."""

    def forward(self, gate_up: Tensor) -> Tensor:
        """`[tokens, 1, 2 f]` to `[tokens, 1, f]`."""
        return swiglu(gate_up)


def block_spec(config: TransformerConfig, spec: ModelSpec, virtual_stage: int | None) -> TransformerBlockSubmodules:
    """The specification of this pipeline rank's layers, of the piece `virtual_stage` where it has several."""
    first = get_transformer_layer_offset(config, virtual_stage)
    count = get_num_layers_to_build(config, virtual_stage)
    with_experts = [spec.has_experts(first + index) for index in range(count)]
    kinds = {kind: _layer_spec(config, spec, kind) for kind in set(with_experts)}
    return TransformerBlockSubmodules(layer_specs=[kinds[kind] for kind in with_experts], layer_norm=RMSNorm)


def _layer_spec(config: TransformerConfig, spec: ModelSpec, with_experts: bool) -> ModuleSpec:
    layer: ModuleSpec = get_gpt_layer_local_spec(
        num_experts=(config.num_moe_experts or 1) if with_experts else None,
        qk_layernorm=config.qk_layernorm,
        multi_latent_attention=spec.latent is not None,
        normalization="RMSNorm",
    )
    submodules = layer.submodules
    submodules.input_layernorm = submodules.pre_mlp_layernorm = RMSNorm
    mlp = submodules.mlp.submodules
    if with_experts:
        assert spec.experts is not None
        layer.module, mlp.router = RoutedLayer, partial(Router, rule=spec.experts)
        mlp.experts.submodules.activation_func = mlp.shared_experts.submodules.activation_func = SwiGlu
    else:
        mlp.activation_func = SwiGlu
    if spec.sandwich_norms:
        layer.module = SandwichLayer
    attention = submodules.self_attention.submodules
    if spec.latent is not None:
        submodules.self_attention.module, attention.core_attention = LatentAttention, PackedAttention
        submodules.self_attention.params["softmax_scale"] = spec.latent.softmax_scale
        return layer
    attention.core_attention = RotaryAttention
    if spec.output_bias:
        attention.linear_proj = OutputWithBias
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return layer
