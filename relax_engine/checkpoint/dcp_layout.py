"""Where a model parameter lies in a Megatron ``torch_dist`` checkpoint.

The layers of one kind are stacked: ``decoder.layers.7.mlp.linear_fc2.weight`` is row 7 of the tensor
``decoder.layers.mlp.linear_fc2.weight`` with shape ``[layers, ...]``, and the experts of a layer so below it. Where
layers differ (some have experts, some an MLP) each is stored by itself, and only experts are stacked. The norms before
attention and MLP are filed under the linear layer they feed (megatron-core 0.16, ``sharded_state_dict_keys_map`` of its
layer specification), so that fused and plain layers share checkpoints; those of layers with latent attention are
stored under their own names. Linear layers carry an empty extra state.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from relax_engine.checkpoint.mapping import WeightMap
from relax_engine.checkpoint.model_spec import ModelSpec

_LAYERS = "decoder.layers."
_RENAMED = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}
_EXPERT = re.compile(r"^(mlp\.experts\.)local_experts\.(\d+)(\..*)$")
_WITH_EXTRA_STATE = re.compile(r"\.linear_(qkv|proj|fc1|fc2|q_proj|q_up_proj|kv_up_proj)\.weight$")


class Location(NamedTuple):
    """The stored tensor's key, the parameter's index in its first dimensions, and their sizes; () for the whole."""

    key: str
    rows: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


def locate(parameter: str, spec: ModelSpec) -> Location:
    """The location of a parameter of ``GPTModel``, e.g. ``decoder.layers.3.input_layernorm.weight``."""
    if not parameter.startswith(_LAYERS):
        return Location(parameter)
    index, _, rest = parameter.removeprefix(_LAYERS).partition(".")
    for ours, stored in _RENAMED.items():
        if spec.latent is None and rest.startswith(ours):
            rest = stored + rest.removeprefix(ours)
    alike = spec.experts is None or not spec.experts.dense_layers
    key, rows, sizes = (
        (_LAYERS, [int(index)], [spec.num_layers]) if alike else (f"{_LAYERS}{index}.", list[int](), list[int]())
    )
    expert = _EXPERT.match(rest)
    if expert is not None and spec.experts is not None:
        rest, rows, sizes = f"{expert[1]}experts{expert[3]}", [*rows, int(expert[2])], [*sizes, spec.experts.count]
    return Location(key + rest, tuple(rows), tuple(sizes))


def extra_state_keys(weights: WeightMap) -> list[str]:
    """Keys of the empty objects that Megatron expects beside the linear layers' weights."""
    keys = []
    for name in weights.parameters:
        if name.startswith(_LAYERS) and _WITH_EXTRA_STATE.search(name):
            key, rows, sizes = locate(name, weights.spec)
            shard = ".".join(map(str, rows or (0,))), ".".join(map(str, sizes or (1,)))
            keys.append(f"{key.removesuffix('weight')}_extra_state/shard_{shard[0]}_{shard[1]}")
    return keys
