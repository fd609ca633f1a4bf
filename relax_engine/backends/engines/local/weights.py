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
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from relax_engine.backends.engines.local.arch import Architecture
from relax_engine.backends.engines.local.errors import ModelError
from relax_engine.backends.engines.local.experts import Expert, Experts
from relax_engine.backends.engines.local.latent import fuse_latent
from relax_engine.backends.engines.local.linear import Linear, make_linear
from relax_engine.backends.engines.local.norm import NormedLinear
from relax_engine.checkpoint.fused_experts import separated
from relax_engine.checkpoint.hf_reader import hf_shapes
from relax_engine.checkpoint.mapping import WeightMap, ignores
from relax_engine.checkpoint.model_spec import ModelSpec

_SPEECH = ("talker.", "code2wav.")
"""What names of tensors begin with that turn text into speech."""
BIAS = "e_score_correction_bias"
"""What the name of a tensor ends with that is float32 in an engine of any dtype."""


def expected_shapes(arch: Architecture) -> dict[str, tuple[int, ...]]:
    """Every Hugging Face parameter name of the model and its shape."""
    weights = WeightMap(arch.spec)
    return {name: shape for mapping in weights.parameters.values() for name, shape in hf_shapes(weights, mapping)}


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
    if name not in shapes and (ignores(arch.spec, name) or (arch.media is not None and name.startswith(_SPEECH))):
        return False
    if name not in shapes:
        raise ModelError(f"tensor {name!r} is not a parameter of this {arch.name}")
    if tuple(shape) != shapes[name]:
        raise ModelError(f"tensor {name!r} has shape {tuple(shape)}, the model needs {shapes[name]}")
    return True


def stored_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype that an engine of `dtype` keeps a tensor in."""
    return torch.float32 if name.endswith(BIAS) else dtype


def read_weights(arch: Architecture, directory: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """All parameters of a model directory as contiguous CPU tensors of `dtype`.

    Raises:
        ModelError: a missing, unknown or misshapen tensor.
    """
    shapes = expected_shapes(arch)
    tensors: dict[str, Tensor] = {}
    stored = (each for name, tensor in iterate_safetensors(directory) for each in separated(name, tensor, arch.spec))
    for name, tensor in stored:
        if check_tensor(arch, shapes, name, tuple(tensor.shape)):
            tensors[name] = tensor.to(stored_dtype(name, dtype)).contiguous()
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
        else torch.empty(shape).normal_(0.0, 0.02, generator=generator).to(stored_dtype(name, dtype))
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


def _pairs(spec: ModelSpec, rows: Tensor, dim: int) -> Tensor:
    """Reorder head rows `[heads * dim, ...]` so that the pairs that RoPE rotates are neighbours."""
    rotated = spec.rope.rotated(dim)
    if spec.rope.adjacent:
        return rows
    heads = rows.view(-1, dim, *rows.shape[1:])
    turned = heads[:, :rotated].unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
    return torch.cat([turned, heads[:, rotated:]], dim=1).flatten(0, 1)


def _group_rows(spec: ModelSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Stack query, key and value rows per key/value head: `[kv, group + 2, dim, ...]`, flattened."""
    q, k = _pairs(spec, q, spec.head_dim), _pairs(spec, k, spec.head_dim)
    parts = [part.reshape(spec.num_query_groups, -1, *part.shape[1:]) for part in (q, k, v)]
    return torch.cat(parts, dim=1).reshape(-1, *q.shape[1:])


class _Fusing:
    """One pass over the layers; products are taken in float32, then cast to `dtype`."""

    def __init__(self, arch: Architecture, raw: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device) -> None:
        self._arch, self._spec, self._raw, self._dtype, self._device = arch, arch.spec, raw, dtype, device

    def get(self, name: str) -> Tensor:
        return self._raw[self._arch.stored_name(name)].to(device=self._device, dtype=torch.float32)

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return make_linear(weight.to(self._dtype), None if bias is None else bias.to(self._dtype))

    def layer(self, index: int) -> LayerWeights:
        prefix = f"model.layers.{index}."
        norm = self.get(f"{prefix}input_layernorm.weight")
        if self._spec.latent is None:
            qkv, qk_norm, out = self._attention(f"{prefix}self_attn.", norm)
        else:
            qk_norm = None
            qkv, out = fuse_latent(
                self._spec,
                lambda name: self.get(f"{prefix}self_attn.{name}"),
                self.linear,
                partial(_pairs, self._spec),
                norm=norm,
                dtype=self._dtype,
            )
        if self._spec.sandwich_norms:
            out = self._normed(out, f"{prefix}post_self_attn_layernorm.weight")
        return LayerWeights(qkv, qk_norm, out, self._mlp(index, prefix))

    def _attention(self, prefix: str, norm: Tensor) -> tuple[Linear, Tensor | None, Linear]:
        spec, scale = self._spec, self._spec.head_dim**-0.5
        query_scale = 1.0 if spec.qk_norm else scale
        q, k, v = (self.get(f"{prefix}{part}_proj.weight") for part in "qkv")
        weight, bias, qk_norm = _group_rows(spec, q * query_scale, k, v) * norm, None, None
        if spec.qkv_bias:
            q, k, v = (self.get(f"{prefix}{part}_proj.bias") for part in "qkv")
            bias = _group_rows(spec, q * query_scale, k, v)
        if spec.qk_norm:
            q, k = (_pairs(spec, self.get(f"{prefix}{part}_norm.weight"), spec.head_dim) for part in "qk")
            group = spec.num_attention_heads // spec.num_query_groups
            qk_norm = torch.stack([q * scale] * group + [k])
        of_output = self.get(f"{prefix}o_proj.bias") if spec.output_bias else None
        return self.linear(weight, bias), qk_norm, self.linear(self.get(f"{prefix}o_proj.weight"), of_output)

    def _normed(self, linear: Linear, name: str) -> Linear:
        return NormedLinear(linear, self.get(name).to(self._dtype), self._spec.rms_norm_eps)

    def _expert(self, name: str, norm: Tensor) -> Expert:
        parts = ("gate_up",) if self._spec.fused_gate_up else ("gate", "up")
        gate_up = torch.cat([self.get(f"{name}.{part}_proj.weight") for part in parts])
        return Expert(self.linear(gate_up * norm), self.linear(self.get(f"{name}.down_proj.weight")))

    def _mlp(self, index: int, prefix: str) -> Expert | Experts:
        norm, rule = self.get(f"{prefix}post_attention_layernorm.weight"), self._spec.experts
        if rule is None or not self._spec.has_experts(index):
            mlp = self._expert(f"{prefix}mlp", norm)
            if self._spec.sandwich_norms:
                return Expert(mlp.gate_up, self._normed(mlp.down, f"{prefix}post_mlp_layernorm.weight"))
            return mlp
        shared = f"{prefix}{rule.shared_name}"
        return Experts(
            rule=rule,
            router=self.get(f"{prefix}mlp.gate.weight") * norm,
            bias=self.get(f"{prefix}mlp.gate.{BIAS}") if rule.bias else None,
            experts=[self._expert(f"{prefix}mlp.experts.{number}", norm) for number in range(rule.count)],
            shared=None if rule.shared_ffn_hidden_size is None else self._expert(shared, norm),
            shared_gate=self.get(f"{shared}_gate.weight") * norm if rule.shared_gate else None,
        )


def fuse(arch: Architecture, raw: Mapping[str, Tensor], *, dtype: torch.dtype, device: torch.device) -> FusedWeights:
    """Build the fused form from Hugging Face tensors; products are taken in float32, then cast to `dtype`."""
    fusing = _Fusing(arch, raw, dtype, device)
    layers = [fusing.layer(index) for index in range(arch.spec.num_layers)]
    embedding = fusing.get("model.embed_tokens.weight")
    head = embedding if arch.spec.tie_word_embeddings else fusing.get("lm_head.weight")
    return FusedWeights(embedding.to(dtype), layers, fusing.linear(head * fusing.get("model.norm.weight")))
