"""Bytes that a run needs on each device, by part, from sizes alone.

What lives here: closed forms of what the training backend and the engines allocate. Parameters, gradients and optimizer
state are exact up to the padding of the distributed optimizer's buffers; activations are what the backward pass keeps,
an estimate; workspace of kernels and fragmentation are left out. Pure functions, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from relax_engine.checkpoint.model_spec import ModelSpec
from relax_engine.config.layout import ParallelLayout

FLOAT32 = 4
_MOMENTS = 2 * FLOAT32  # of Adam, for each parameter


@dataclass(frozen=True, slots=True)
class AdapterSizes:
    """Low-rank adapters of these linear layers, in whose place nothing else is trained."""

    rank: int
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrainingShape:
    """How a model is trained: `world` processes in `layout`, parameters of `itemsize` bytes, `tokens` in a micro-batch.

    `recompute` is the granularity of activation recomputation; `towers` counts parameters beside the language model's,
    which every device has.
    """

    layout: ParallelLayout
    world: int
    itemsize: int
    tokens: int
    distributed_optimizer: bool = False
    recompute: str | None = None
    towers: int = 0
    adapters: AdapterSizes | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """Parameters on one device: `dense` ones have data-parallel replicas, `expert` ones fewer."""

    dense: int
    expert: int

    @property
    def total(self) -> int:
        """Both."""
        return self.dense + self.expert


def parameters_per_device(spec: ModelSpec, layout: ParallelLayout) -> Share:
    """Parameters of the pipeline rank that has most."""
    return max((_stage(spec, layout, rank) for rank in range(layout.pipeline)), key=lambda share: share.total)


def training_memory(spec: ModelSpec, shape: TrainingShape) -> dict[str, int]:
    """Bytes on the device that needs most of the trained model.

    Float32 parameters are their own main parameters; others have float32 copies in the optimizer. With the distributed
    optimizer, copies and moments are shared by the replicas of a parameter.
    """
    share = parameters_per_device(spec, shape.layout)
    dense, expert = share.dense + shape.towers, share.expert
    trained = Share(dense, expert) if shape.adapters is None else _adapters(spec, shape.layout, shape.adapters)
    replicas = expert_replicas = 1
    if shape.distributed_optimizer:
        replicas = shape.layout.data_parallel(shape.world) * shape.layout.context
        expert_replicas = max(
            1, shape.world // (shape.layout.experts_tensor * shape.layout.expert * shape.layout.pipeline)
        )
    kept = _MOMENTS + (FLOAT32 if shape.itemsize < FLOAT32 else 0)
    return {
        "parameters": (dense + expert + (trained.total if shape.adapters else 0)) * shape.itemsize,
        "gradients": trained.total * FLOAT32,
        "optimizer": kept * (-(-trained.dense // replicas) + -(-trained.expert // expert_replicas)),
        "activations": activation_bytes(spec, shape),
    }


def activation_bytes(spec: ModelSpec, shape: TrainingShape) -> int:
    """What the backward pass of one micro-batch keeps, on the device that has most; with a pipeline, of one
    micro-batch in flight for each of its ranks.

    A layer keeps for each token the inputs of its norms and matrix products, rotated queries, keys and values,
    attention's output and the activation's input. Full recomputation keeps a layer's input, and one layer whole;
    selective recomputation leaves out what attention keeps.
    """
    layout = shape.layout
    layers = -(-spec.num_layers // layout.pipeline)
    tokens = -(-shape.tokens // layout.context)
    per_layer = max(_kept_of_layer(spec, shape, layer) for layer in range(spec.num_layers))
    in_flight = layout.pipeline
    if shape.recompute == "full":
        cut = layout.tensor if layout.sequence_parallel else 1
        kept = layers * in_flight * spec.hidden_size // cut + per_layer
    else:
        kept = layers * in_flight * per_layer
    columns = (spec.num_labels or -(-spec.vocab_size // layout.tensor)) if layout.pipeline == 1 else 0
    # Logits, and their softmax in float32 with its gradient.
    return tokens * (kept * shape.itemsize + columns * (shape.itemsize + 2 * FLOAT32))


def key_value_bytes(spec: ModelSpec, *, itemsize: int, tensor: int = 1) -> int:
    """Bytes of the key/value cache for one token on one device of an engine.

    With latent attention every device has the latent vector and the rotary key, once; the embedded engine has them
    twice, as keys and as values.
    """
    if spec.latent is not None:
        return spec.num_layers * (spec.latent.kv_rank + spec.latent.rotary_dim) * itemsize
    return 2 * spec.num_layers * -(-spec.num_query_groups // tensor) * spec.head_dim * itemsize


def _stage(spec: ModelSpec, layout: ParallelLayout, rank: int) -> Share:
    """Parameters of one pipeline rank (which of its layers are dense is taken as if the ranks were not interleaved)."""
    counts = layers_of_ranks(spec.num_layers, layout)
    first = sum(counts[:rank])
    shares = [_layer(spec, layout, layer) for layer in range(first, first + counts[rank])]
    rows = -(-spec.vocab_size // layout.tensor)
    dense, expert = sum(share.dense for share in shares), sum(share.expert for share in shares)
    last = rank == layout.pipeline - 1
    dense += rows * spec.hidden_size if rank == 0 else 0
    dense += spec.hidden_size if last else 0
    if last and spec.num_labels is not None:
        dense += spec.num_labels * spec.hidden_size
    elif last and (not spec.tie_word_embeddings or rank > 0):  # a tied embedding has a copy on the last rank
        dense += rows * spec.hidden_size
    return Share(dense, expert)


def _adapters(spec: ModelSpec, layout: ParallelLayout, sizes: AdapterSizes) -> Share:
    """Parameters of the adapters on the pipeline rank that has most layers.

    Of a layer cut by rows the half A of each fused part is whole on every rank, of one cut by columns the half B.
    """
    hidden, tensor = spec.hidden_size, layout.tensor
    value = spec.head_dim if spec.latent is None else spec.latent.value_dim
    queries = spec.num_attention_heads * value
    qkv = queries + 2 * spec.num_query_groups * spec.head_dim

    def mlp(ffn: int, cut: int, parts: int = 2) -> int:
        first = parts * hidden + 2 * ffn // cut if "linear_fc1" in sizes.targets else 0
        return first + (ffn // cut + hidden if "linear_fc2" in sizes.targets else 0)

    attention = 3 * hidden + qkv // tensor if "linear_qkv" in sizes.targets else 0
    attention += queries // tensor + hidden if "linear_proj" in sizes.targets else 0
    dense = expert = 0
    for layer in range(max(layers_of_ranks(spec.num_layers, layout))):
        dense += attention
        experts = spec.experts if spec.has_experts(layer) else None
        if experts is None:
            dense += mlp(spec.ffn_hidden_size, tensor, 1 if spec.fused_gate_up else 2)
            continue
        dense += mlp(experts.shared_ffn_hidden_size, tensor) if experts.shared_ffn_hidden_size else 0
        expert += experts.count // layout.expert * mlp(experts.ffn_hidden_size, layout.experts_tensor)
    return Share(dense * sizes.rank, expert * sizes.rank)


def layers_of_ranks(layers: int, layout: ParallelLayout) -> list[int]:
    """Layers on each pipeline rank."""
    ends = (layout.first_layers, layout.last_layers)
    rest = layers - sum(count or 0 for count in ends)
    others = layout.pipeline - sum(count is not None for count in ends)
    counts = [rest // max(others, 1)] * layout.pipeline
    if layout.first_layers is not None:
        counts[0] = layout.first_layers
    if layout.last_layers is not None:
        counts[-1] = layout.last_layers
    return counts


def _layer(spec: ModelSpec, layout: ParallelLayout, layer: int) -> Share:
    hidden, tensor = spec.hidden_size, layout.tensor
    dense = (4 if spec.sandwich_norms else 2) * hidden + _attention(spec, tensor)
    experts = spec.experts
    if experts is None or not spec.has_experts(layer):
        return Share(dense + 3 * hidden * spec.ffn_hidden_size // tensor, 0)
    dense += experts.count * (hidden + (1 if experts.bias else 0))  # the router
    dense += 3 * hidden * (experts.shared_ffn_hidden_size or 0) // tensor
    dense += hidden if experts.shared_gate else 0
    own = experts.count // layout.expert
    return Share(dense, own * 3 * hidden * experts.ffn_hidden_size // layout.experts_tensor)


def _attention(spec: ModelSpec, tensor: int) -> int:
    """Parameters of one layer's attention on one of `tensor` ranks."""
    hidden, head, heads, latent = spec.hidden_size, spec.head_dim, spec.num_attention_heads, spec.latent
    if latent is not None:
        whole = (latent.kv_rank + latent.rotary_dim) * hidden + latent.kv_rank
        whole += 0 if latent.q_rank is None else latent.q_rank * (hidden + 1)
        by_heads = head * (latent.q_rank or hidden) + (latent.plain_dim + latent.value_dim) * latent.kv_rank
        return whole + heads * (by_heads + latent.value_dim * hidden) // tensor
    qkv = (heads + 2 * spec.num_query_groups) * head // tensor
    count = qkv * hidden + hidden * heads * head // tensor
    count += 2 * head if spec.qk_norm else 0
    count += qkv if spec.qkv_bias else 0
    return count + (hidden if spec.output_bias else 0)


def _kept_of_attention(spec: ModelSpec, tensor: int, cut: int, selective: bool) -> int:
    """Elements for each token."""
    heads, head, latent = spec.num_attention_heads, spec.head_dim, spec.latent
    if latent is not None:
        vectors = 2 * (latent.kv_rank + latent.rotary_dim + (latent.q_rank or 0)) // cut
        projected, values = head + latent.plain_dim + latent.value_dim, latent.value_dim
        attention = 0 if selective else 2 * head + 2 * values  # rotated q, k, v and the output
        return vectors + heads * (projected + attention + values) // tensor
    groups = spec.num_query_groups
    projected = (heads + 2 * groups) * head
    normed = (heads + groups) * head if spec.qk_norm else 0
    attention = 0 if selective else projected + heads * head  # rotated q, k, v and the output
    return (projected + normed + attention + heads * head) // tensor


def _kept_of_layer(spec: ModelSpec, shape: TrainingShape, layer: int) -> int:
    """Elements for each token."""
    layout = shape.layout
    cut = layout.tensor if layout.sequence_parallel else 1
    kept = (6 if spec.sandwich_norms else 4) * spec.hidden_size // cut
    kept += _kept_of_attention(spec, layout.tensor, cut, shape.recompute == "selective")
    experts = spec.experts
    if experts is None or not spec.has_experts(layer):
        return kept + 3 * spec.ffn_hidden_size // layout.tensor
    routed = experts.top_k * (2 * spec.hidden_size + 3 * experts.ffn_hidden_size // layout.experts_tensor)
    return kept + routed + 3 * (experts.shared_ffn_hidden_size or 0) // layout.tensor
