"""The engine's weights: Hugging Face tensors as received, and the fused form the decoder computes with.

What lives here: names and shapes, reading safetensors, fusing. The fused form has query, key and value
in one matrix, gate and up in one, RMSNorm weights folded into the matrix that follows, rotary pairs
interleaved (so that the rotation is one complex product) and the softmax scale folded into the query.
What does not: where the tensors come from (`weight_update.py`), the forward pass (`decoder.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from relax_engine.backends.engines.local.arch import Architecture
from relax_engine.backends.engines.local.errors import ModelError
from relax_engine.backends.engines.local.experts import Expert, Experts
from relax_engine.backends.engines.local.linear import Linear, make_linear

SHARED = "mlp.shared_expert"
"""The expert of a layer that every token sees, without the layer's prefix."""


def expected_shapes(arch: Architecture) -> dict[str, tuple[int, ...]]:
    """Every Hugging Face parameter name of the model and its shape."""
    hidden, dim = arch.hidden_size, arch.head_dim
    q_out, kv_out = arch.num_heads * dim, arch.num_kv_heads * dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (arch.vocab_size, hidden)}
    for layer in range(arch.num_layers):
        prefix = f"model.layers.{layer}."
        for part, rows in (("q", q_out), ("k", kv_out), ("v", kv_out)):
            shapes[f"{prefix}self_attn.{part}_proj.weight"] = (rows, hidden)
            if arch.qkv_bias:
                shapes[f"{prefix}self_attn.{part}_proj.bias"] = (rows,)
        shapes[f"{prefix}self_attn.o_proj.weight"] = (hidden, q_out)
        if arch.output_bias:
            shapes[f"{prefix}self_attn.o_proj.bias"] = (hidden,)
        if arch.qk_norm:
            shapes[f"{prefix}self_attn.q_norm.weight"] = (dim,)
            shapes[f"{prefix}self_attn.k_norm.weight"] = (dim,)
        for name, width in _mlps(arch, layer):
            for part in ("gate", "up"):
                shapes[f"{prefix}{name}.{part}_proj.weight"] = (width, hidden)
            shapes[f"{prefix}{name}.down_proj.weight"] = (hidden, width)
        if arch.experts is not None and arch.has_experts(layer):
            shapes[f"{prefix}mlp.gate.weight"] = (arch.experts.count, hidden)
            if arch.experts.shared_gate:
                shapes[f"{prefix}{SHARED}_gate.weight"] = (1, hidden)
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not arch.tied:
        shapes["lm_head.weight"] = (arch.vocab_size, hidden)
    return shapes


def _mlps(arch: Architecture, layer: int) -> list[tuple[str, int]]:
    """Names, without the layer's prefix, and widths of the SwiGLU blocks of a layer."""
    experts = arch.experts
    if experts is None or not arch.has_experts(layer):
        return [("mlp", arch.intermediate_size)]
    routed = [(f"mlp.experts.{index}", experts.ffn_hidden_size) for index in range(experts.count)]
    return routed + ([(SHARED, experts.shared_ffn_hidden_size)] if experts.shared_ffn_hidden_size is not None else [])


def iterate_safetensors(directory: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield `(name, tensor)` of a model directory, sharded or not, one tensor in memory at a time.

    Raises:
        ModelError: no weights, or a shard that the index names is missing.
    """
    from safetensors import safe_open

    index, single = directory / "model.safetensors.index.json", directory / "model.safetensors"
    if index.is_file():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    elif single.is_file():
        files = [single.name]
    else:
        raise ModelError(f"{directory} has neither model.safetensors nor model.safetensors.index.json")
    for file in files:
        if not (directory / file).is_file():
            raise ModelError(f"{directory / file} is missing, but {index.name} names it")
        with safe_open(str(directory / file), framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118  (a safetensors handle is not iterable)
                yield name, handle.get_tensor(name)


def check_tensor(arch: Architecture, shapes: Mapping[str, tuple[int, ...]], name: str, shape: tuple[int, ...]) -> bool:
    """True when the engine stores this tensor, False when it is a tied copy to be ignored.

    Raises:
        ModelError: the name is not a parameter of this model, or the shape differs.
    """
    if name == "lm_head.weight" and arch.tied:
        return False
    if name.endswith("rotary_emb.inv_freq"):
        return False
    if name not in shapes:
        raise ModelError(f"tensor {name!r} is not a parameter of this {arch.name}")
    if tuple(shape) != shapes[name]:
        raise ModelError(f"tensor {name!r} has shape {tuple(shape)}, the model needs {shapes[name]}")
    return True


def read_weights(arch: Architecture, directory: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """All parameters of a model directory as contiguous CPU tensors of `dtype`.

    Raises:
        ModelError: a missing, unknown or misshapen tensor.
    """
    shapes = expected_shapes(arch)
    tensors: dict[str, Tensor] = {}
    for name, tensor in iterate_safetensors(directory):
        if check_tensor(arch, shapes, name, tuple(tensor.shape)):
            tensors[name] = tensor.to(dtype).contiguous()
    missing = sorted(set(shapes) - set(tensors))
    if missing:
        raise ModelError(f"{directory} lacks {len(missing)} tensors of the model, first {missing[0]!r}")
    return tensors


def dummy_weights(arch: Architecture, dtype: torch.dtype, seed: int) -> dict[str, Tensor]:
    """Random parameters (norms 1, the rest normal with deviation 0.02) for `--load-format dummy`."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape, dtype=dtype)
        if name.endswith("norm.weight")
        else torch.empty(shape).normal_(0.0, 0.02, generator=generator).to(dtype)
        for name, shape in expected_shapes(arch).items()
    }


@dataclass
class LayerWeights:
    """One layer in fused form; `qk_norm` is `[group + 1, dim]`, the query's and the key's norm weights."""

    qkv: Linear
    qk_norm: Tensor | None
    out: Linear
    mlp: Expert | Experts


@dataclass
class FusedWeights:
    """All layers in fused form, the embedding `[vocab, hidden]` and the head."""

    embedding: Tensor
    layers: list[LayerWeights]
    head: Linear


def _interleave(rows: Tensor, dim: int) -> Tensor:
    """Reorder head rows `[heads * dim, ...]` from halves (i, i + dim/2) to adjacent pairs."""
    heads = rows.view(-1, 2, dim // 2, *rows.shape[1:])
    return heads.transpose(1, 2).reshape(rows.shape)


def _group_rows(arch: Architecture, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Stack query, key and value rows per key/value head: `[kv, group + 2, dim, ...]`, flattened."""
    kv, dim = arch.num_kv_heads, arch.head_dim
    q, k = _interleave(q, dim), _interleave(k, dim)
    parts = [part.reshape(kv, -1, *part.shape[1:]) for part in (q, k, v)]
    return torch.cat(parts, dim=1).reshape(-1, *q.shape[1:])


def fuse(arch: Architecture, raw: Mapping[str, Tensor], *, dtype: torch.dtype, device: torch.device) -> FusedWeights:
    """Build the fused form from Hugging Face tensors; products are taken in float32, then cast to `dtype`."""
    scale = arch.head_dim**-0.5

    def get(name: str) -> Tensor:
        return raw[name].to(device=device, dtype=torch.float32)

    def linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
        return make_linear(weight.to(dtype), None if bias is None else bias.to(dtype))

    def mlp_of(index: int) -> Expert | Experts:
        prefix = f"model.layers.{index}."
        norm = get(prefix + "post_attention_layernorm.weight")
        blocks = {}
        for name, _ in _mlps(arch, index):
            gate_up = torch.cat([get(f"{prefix}{name}.{part}_proj.weight") for part in ("gate", "up")])
            blocks[name] = Expert(linear(gate_up * norm), linear(get(f"{prefix}{name}.down_proj.weight")))
        if arch.experts is None or not arch.has_experts(index):
            return blocks["mlp"]
        shared = blocks.pop(SHARED, None)
        return Experts(
            router=get(f"{prefix}mlp.gate.weight") * norm,
            experts=list(blocks.values()),
            top_k=arch.experts.top_k,
            normalise=arch.experts.normalise,
            shared=shared,
            shared_gate=get(f"{prefix}{SHARED}_gate.weight") * norm if arch.experts.shared_gate else None,
        )

    layers = []
    for index in range(arch.num_layers):
        prefix = f"model.layers.{index}."
        attn = prefix + "self_attn."
        query_scale = 1.0 if arch.qk_norm else scale
        q, k, v = (get(f"{attn}{part}_proj.weight") for part in "qkv")
        qkv = _group_rows(arch, q * query_scale, k, v) * get(prefix + "input_layernorm.weight")
        bias = None
        if arch.qkv_bias:
            qb, kb, vb = (get(f"{attn}{part}_proj.bias") for part in "qkv")
            bias = _group_rows(arch, qb * query_scale, kb, vb)
        norm = None
        if arch.qk_norm:
            q_norm = _interleave(get(attn + "q_norm.weight"), arch.head_dim) * scale
            k_norm = _interleave(get(attn + "k_norm.weight"), arch.head_dim)
            norm = torch.stack([q_norm] * arch.group_size + [k_norm])
        layers.append(
            LayerWeights(
                qkv=linear(qkv, bias),
                qk_norm=norm,
                out=linear(get(attn + "o_proj.weight"), get(attn + "o_proj.bias") if arch.output_bias else None),
                mlp=mlp_of(index),
            )
        )
    embedding = get("model.embed_tokens.weight")
    head = embedding if arch.tied else get("lm_head.weight")
    return FusedWeights(embedding.to(dtype), layers, linear(head * get("model.norm.weight")))
