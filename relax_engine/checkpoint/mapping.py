"""Hugging Face weights <-> Megatron parameters, tensor by tensor, in pure torch.

What lives here: for each Megatron parameter the Hugging Face tensors it is made of, how to merge
and split them, and how it is sharded over tensor-parallel ranks. What does not: reading or writing
files, process groups, Megatron itself.

"Full" tensors are whole (unsharded) parameters. Megatron names are those of `GPTModel` without
Transformer Engine, e.g. `decoder.layers.3.self_attention.linear_qkv.weight`.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from relax_engine.checkpoint.model_spec import LatentSpec, ModelSpec
from relax_engine.multimodal.towers import tower_shapes

SCORE = "score.weight"
"""The score layer's only tensor, under the same name in both worlds."""
_HF_LAYER = re.compile(r"^model\.layers\.(\d+)\.")


class Layout(Enum):
    """How a parameter is built from its parts and cut over tensor-parallel ranks."""

    REPLICATED = "replicated"  # the same on every rank
    ROWS = "rows"  # cut along dimension 0
    COLUMNS = "columns"  # cut along dimension 1
    VOCAB = "vocab"  # as ROWS; rows padded with zeros to a multiple of the rank count
    QKV = "qkv"  # q, k, v interleaved by query group; cut as ROWS
    GATE_UP = "gate_up"  # gate above up; a rank holds its slice of gate above its slice of up


@dataclass(frozen=True, slots=True)
class ParameterMapping:
    """One Megatron parameter and the Hugging Face tensors that make it, in merge order."""

    name: str
    hf_names: tuple[str, ...]
    layout: Layout
    shape: tuple[int, ...]
    expert: int | None = None
    """The expert it belongs to: one expert-parallel rank has it, cut over its expert-tensor-parallel ranks."""
    wide: bool = False
    """Whether it is float32 whatever the model's type, and not trained."""


class WeightMappingError(ValueError):
    """Tensors that do not fit the model: missing, unexpected, repeated, or of the wrong shape."""


class WeightMap:
    """The parameters of one model, in Megatron's order.

    Stateless; `Assembler` holds the state of one pass from Hugging Face tensors to parameters.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.parameters: dict[str, ParameterMapping] = {p.name: p for p in _parameters(spec)}
        self.owner: dict[str, ParameterMapping] = {
            hf_name: p for p in self.parameters.values() for hf_name in p.hf_names
        }

    def hf_names(self) -> list[str]:
        """All Hugging Face names in the order `split` over `parameters` yields them."""
        return list(self.owner)

    def ignores(self, hf_name: str) -> bool:
        """Whether a checkpoint may carry this tensor although the model has no use for it."""
        return ignores(self.spec, hf_name)

    def may_lack(self, hf_name: str, source: ModelSpec) -> bool:
        """Whether a checkpoint of `source` may be without this tensor: a language model has no score layer."""
        return hf_name == SCORE and source.num_labels is None

    def merge(self, name: str, parts: Sequence[Tensor]) -> Tensor:
        """The full parameter `name` from its Hugging Face parts, in `hf_names` order.

        Raises:
            WeightMappingError: the parts do not give the parameter's shape.
        """
        mapping = self.parameters[name]
        if mapping.layout is Layout.QKV:
            full = _interleave_qkv(self.spec, parts)
        else:
            full = parts[0] if len(parts) == 1 else torch.cat(list(parts))
        if tuple(full.shape) != mapping.shape:
            shapes = ", ".join(f"{n} {tuple(p.shape)}" for n, p in zip(mapping.hf_names, parts, strict=True))
            raise WeightMappingError(f"{name} needs shape {mapping.shape}, the checkpoint has {shapes}")
        return full

    def split(self, name: str, full: Tensor) -> list[tuple[str, Tensor]]:
        """The Hugging Face tensors of a full parameter; inverse of `merge`. Unfused ones are views."""
        mapping = self.parameters[name]
        if mapping.layout is Layout.QKV:
            parts = _separate_qkv(self.spec, full)
        elif mapping.layout is Layout.GATE_UP:
            parts = list(full.chunk(len(mapping.hf_names)))
        else:
            parts = [full]
        return list(zip(mapping.hf_names, parts, strict=True))

    def shard(self, name: str, full: Tensor, rank: int, size: int) -> Tensor:
        """The slice of a full parameter that tensor-parallel rank `rank` of `size` holds.

        Raises:
            WeightMappingError: the parameter cannot be cut into `size` equal slices.
        """
        layout = self.parameters[name].layout
        if size == 1 or layout is Layout.REPLICATED:
            return full
        self._check_divisible(name, size)
        if layout is Layout.COLUMNS:
            return full.chunk(size, dim=1)[rank]
        if layout is Layout.GATE_UP:
            return torch.cat([half.chunk(size)[rank] for half in full.chunk(2)])
        if layout is Layout.VOCAB:
            rows = padded_vocab_size(self.spec.vocab_size, size) // size
            own = full[rank * rows : (rank + 1) * rows]
            return torch.cat([own, own.new_zeros(rows - len(own), *own.shape[1:])]) if len(own) < rows else own
        return full.chunk(size)[rank]

    def unshard(self, name: str, shards: Sequence[Tensor]) -> Tensor:
        """The full parameter from the slices of all tensor-parallel ranks; inverse of `shard`."""
        layout = self.parameters[name].layout
        if len(shards) == 1 or layout is Layout.REPLICATED:
            return shards[0]
        if layout is Layout.COLUMNS:
            return torch.cat(list(shards), dim=1)
        if layout is Layout.GATE_UP:
            halves = [shard.chunk(2) for shard in shards]
            return torch.cat([gate for gate, _ in halves] + [up for _, up in halves])
        full = torch.cat(list(shards))
        return full[: self.spec.vocab_size] if layout is Layout.VOCAB else full

    def _check_divisible(self, name: str, size: int) -> None:
        mapping = self.parameters[name]
        groups = self.spec.num_query_groups
        if mapping.layout is Layout.QKV and groups % size and size % groups:
            raise WeightMappingError(
                f"{name}: {groups} key/value heads cannot be shared by {size} tensor-parallel ranks; choose a divisor "
                f"or a multiple of {groups} as --tensor-model-parallel-size"
            )
        units = {
            Layout.COLUMNS: mapping.shape[1] if len(mapping.shape) > 1 else size,
            Layout.GATE_UP: mapping.shape[0] // 2,
            Layout.ROWS: mapping.shape[0],
            Layout.QKV: mapping.shape[0],
        }.get(mapping.layout, size)
        if units % size:
            raise WeightMappingError(f"{name}: size {units} is not divisible by {size} tensor-parallel ranks")


def ignores(spec: ModelSpec, hf_name: str) -> bool:
    """Whether a checkpoint may carry this tensor although the model has no use for it."""
    replaced_head = spec.tie_word_embeddings or spec.num_labels is not None
    of_head, of_rope = replaced_head and hf_name.endswith("lm_head.weight"), hf_name.endswith("rotary_emb.inv_freq")
    return of_head or of_rope or carries(spec, hf_name)


def carries(spec: ModelSpec, hf_name: str) -> bool:
    """Whether the tensor is one of the layers for further tokens, or of what a model says its text with: exports take
    them from the original model."""
    if spec.media is not None and hf_name.startswith(spec.media.others):
        return True
    match = _HF_LAYER.match(hf_name)
    return match is not None and 0 <= int(match[1]) - spec.num_layers < spec.mtp_layers


class Assembler:
    """Merges a stream of Hugging Face tensors, in any order, into full Megatron parameters.

    Holds only the parts of parameters that are not complete yet.
    """

    def __init__(self, weights: WeightMap, wanted: Collection[str] | None = None) -> None:
        """`wanted` are the parameters to assemble, by default all; tensors of others are dropped."""
        self._weights = weights
        self._wanted = weights.parameters if wanted is None else wanted
        self._waiting: dict[str, dict[str, Tensor]] = {}
        self._done: set[str] = set()

    def add(self, hf_name: str, tensor: Tensor) -> tuple[str, Tensor] | None:
        """Take one tensor; returns `(parameter name, full tensor)` when it completes a parameter.

        Raises:
            WeightMappingError: the model has no such tensor, it came twice, or its shape is wrong.
        """
        mapping = self._weights.owner.get(hf_name)
        if mapping is None:
            if self._weights.ignores(hf_name):
                return None
            raise WeightMappingError(f"unexpected tensor {hf_name!r}: {self._weights.spec.architecture} has none")
        if mapping.name not in self._wanted:
            return None
        parts = self._waiting.setdefault(mapping.name, {})
        if mapping.name in self._done or hf_name in parts:
            raise WeightMappingError(f"tensor {hf_name!r} came twice")
        parts[hf_name] = tensor
        if len(parts) < len(mapping.hf_names):
            return None
        del self._waiting[mapping.name]
        self._done.add(mapping.name)
        return mapping.name, self._weights.merge(mapping.name, [parts[n] for n in mapping.hf_names])

    def finish(self) -> None:
        """Check that every parameter was assembled.

        Raises:
            WeightMappingError: names the tensors that never came.
        """
        missing = [
            hf_name
            for name, mapping in self._weights.parameters.items()
            if name in self._wanted and name not in self._done
            for hf_name in mapping.hf_names
            if hf_name not in self._waiting.get(name, {})
        ]
        if missing:
            shown = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
            raise WeightMappingError(f"{len(missing)} tensors are missing: {shown}")


def padded_vocab_size(vocab_size: int, tensor_parallel: int) -> int:
    """Rows of the embedding when cut over `tensor_parallel` ranks: the next multiple."""
    return -(-vocab_size // tensor_parallel) * tensor_parallel


def _parameters(spec: ModelSpec) -> Iterator[ParameterMapping]:
    hidden, vocab = (spec.hidden_size,), (spec.vocab_size, spec.hidden_size)
    text, head = ("model.", "") if spec.media is None else (spec.media.text_prefix, spec.media.head_prefix)
    yield ParameterMapping("embedding.word_embeddings.weight", (f"{text}embed_tokens.weight",), Layout.VOCAB, vocab)
    for index in range(spec.num_layers):
        mlp = _experts(spec) if spec.has_experts(index) else _mlp(spec)
        norm, *others = _norms(spec)
        for part in itertools.chain([norm], _attention(spec), others, mlp):
            yield dataclasses.replace(
                part,
                name=f"decoder.layers.{index}.{part.name}",
                hf_names=tuple(f"{text}layers.{index}.{hf_name}" for hf_name in part.hf_names),
            )
    yield ParameterMapping("decoder.final_layernorm.weight", (f"{text}norm.weight",), Layout.REPLICATED, hidden)
    if spec.num_labels is not None:
        yield ParameterMapping(SCORE, (SCORE,), Layout.REPLICATED, (spec.num_labels, spec.hidden_size))
    elif not spec.tie_word_embeddings:
        yield ParameterMapping("output_layer.weight", (f"{head}lm_head.weight",), Layout.VOCAB, vocab)
    if spec.media is not None:
        for name, shape in tower_shapes(spec.media).items():
            yield ParameterMapping(f"media.{name}", (f"{spec.media.prefix}{name}",), Layout.REPLICATED, shape)


def _norms(spec: ModelSpec) -> Iterator[ParameterMapping]:
    """Norms of one layer's hidden states, names without the layer's prefix."""
    names = [("input_layernorm", "input_layernorm"), ("pre_mlp_layernorm", "post_attention_layernorm")]
    if spec.sandwich_norms:
        names += [(name, name) for name in ("post_self_attn_layernorm", "post_mlp_layernorm")]
    for ours, theirs in names:
        yield ParameterMapping(f"{ours}.weight", (f"{theirs}.weight",), Layout.REPLICATED, (spec.hidden_size,))


def _attention(spec: ModelSpec) -> Iterator[ParameterMapping]:
    """Attention of one layer, names without the layer's prefix."""
    hidden, heads, head = spec.hidden_size, spec.num_attention_heads, spec.head_dim
    values = heads * (head if spec.latent is None else spec.latent.value_dim)
    output = ("self_attn.o_proj.weight",)
    yield ParameterMapping("self_attention.linear_proj.weight", output, Layout.COLUMNS, (hidden, values))
    if spec.output_bias:
        bias = ("self_attn.o_proj.bias",)
        yield ParameterMapping("self_attention.linear_proj.bias", bias, Layout.REPLICATED, (hidden,))
    if spec.latent is not None:
        yield from _latent_attention(spec, spec.latent)
        return
    qkv = (heads + 2 * spec.num_query_groups) * head
    yield ParameterMapping("self_attention.linear_qkv.weight", _qkv_names("weight"), Layout.QKV, (qkv, hidden))
    if spec.qkv_bias:
        yield ParameterMapping("self_attention.linear_qkv.bias", _qkv_names("bias"), Layout.QKV, (qkv,))
    if spec.qk_norm:
        for part in "qk":
            theirs = (f"self_attn.{part}_norm.weight",)
            yield ParameterMapping(f"self_attention.{part}_layernorm.weight", theirs, Layout.REPLICATED, (head,))


def _latent_attention(spec: ModelSpec, latent: LatentSpec) -> Iterator[ParameterMapping]:
    """Projections to and from latent vectors: those to them are small, and every rank has them whole."""
    hidden, heads, whole = spec.hidden_size, spec.num_attention_heads, Layout.REPLICATED
    queries, keys_values = heads * spec.head_dim, heads * (latent.plain_dim + latent.value_dim)
    shapes = [
        ("linear_kv_down_proj", "kv_a_proj_with_mqa", whole, (latent.kv_rank + latent.rotary_dim, hidden)),
        ("kv_layernorm", "kv_a_layernorm", whole, (latent.kv_rank,)),
        ("linear_kv_up_proj", "kv_b_proj", Layout.ROWS, (keys_values, latent.kv_rank)),
    ]
    if latent.q_rank is None:
        shapes.append(("linear_q_proj", "q_proj", Layout.ROWS, (queries, hidden)))
    else:
        shapes += [
            ("linear_q_down_proj", "q_a_proj", whole, (latent.q_rank, hidden)),
            ("q_layernorm", "q_a_layernorm", whole, (latent.q_rank,)),
            ("linear_q_up_proj", "q_b_proj", Layout.ROWS, (queries, latent.q_rank)),
        ]
    for ours, theirs, layout, shape in shapes:
        yield ParameterMapping(f"self_attention.{ours}.weight", (f"self_attn.{theirs}.weight",), layout, shape)


def _mlp(spec: ModelSpec) -> Iterator[ParameterMapping]:
    """The MLP of a dense layer."""
    return _swiglu("mlp", "mlp", spec.hidden_size, spec.ffn_hidden_size, fused=spec.fused_gate_up)


def _swiglu(
    name: str, theirs: str, hidden: int, ffn: int, expert: int | None = None, *, fused: bool = False
) -> Iterator[ParameterMapping]:
    gate_up = tuple(f"{theirs}.{part}_proj.weight" for part in (("gate_up",) if fused else ("gate", "up")))
    yield ParameterMapping(f"{name}.linear_fc1.weight", gate_up, Layout.GATE_UP, (2 * ffn, hidden), expert)
    down = (f"{theirs}.down_proj.weight",)
    yield ParameterMapping(f"{name}.linear_fc2.weight", down, Layout.COLUMNS, (hidden, ffn), expert)


def _experts(spec: ModelSpec) -> Iterator[ParameterMapping]:
    """The mixture of experts of one layer."""
    experts, hidden = spec.experts, spec.hidden_size
    assert experts is not None
    yield ParameterMapping("mlp.router.weight", ("mlp.gate.weight",), Layout.REPLICATED, (experts.count, hidden))
    if experts.bias:
        bias = ("mlp.gate.e_score_correction_bias",)
        yield ParameterMapping("mlp.router.expert_bias", bias, Layout.REPLICATED, (experts.count,), wide=True)
    for index in range(experts.count):
        ours, theirs = f"mlp.experts.local_experts.{index}", f"mlp.experts.{index}"
        yield from _swiglu(ours, theirs, hidden, experts.ffn_hidden_size, expert=index)
    if experts.shared_ffn_hidden_size is not None:
        yield from _swiglu("mlp.shared_experts", experts.shared_name, hidden, experts.shared_ffn_hidden_size)
    if experts.shared_gate:
        gate = (f"{experts.shared_name}_gate.weight",)
        yield ParameterMapping("mlp.shared_experts.gate_weight", gate, Layout.REPLICATED, (1, hidden))


def _qkv_names(kind: str) -> tuple[str, ...]:
    return tuple(f"self_attn.{part}_proj.{kind}" for part in "qkv")


def _interleave_qkv(spec: ModelSpec, parts: Sequence[Tensor]) -> Tensor:
    """q `[heads*d, ...]`, k, v `[groups*d, ...]` -> `[(heads+2*groups)*d, ...]`, group by group."""
    try:
        grouped = [part.reshape(spec.num_query_groups, -1, spec.head_dim, *part.shape[1:]) for part in parts]
        return torch.cat(grouped, dim=1).flatten(0, 2)
    except RuntimeError as error:
        shapes = [tuple(part.shape) for part in parts]
        raise WeightMappingError(f"q, k, v of shapes {shapes} do not fit {spec.num_query_groups} groups") from error


def _separate_qkv(spec: ModelSpec, full: Tensor) -> list[Tensor]:
    per_group = spec.num_attention_heads // spec.num_query_groups
    grouped = full.unflatten(0, (spec.num_query_groups, per_group + 2, spec.head_dim))
    return [part.flatten(0, 2) for part in grouped.split([per_group, 1, 1], dim=1)]
