"""Where a model parameter lies in a Megatron ``torch_dist`` checkpoint.

The layers of one kind are stacked: ``decoder.layers.7.mlp.linear_fc2.weight`` is row 7 of the tensor
``decoder.layers.mlp.linear_fc2.weight`` with shape ``[layers, ...]``. The norms before attention and MLP are
filed under the linear layer they feed (megatron-core 0.16, ``sharded_state_dict_keys_map`` of its layer
specification), so that fused and plain layers share checkpoints. Linear layers carry an empty extra state.
"""

from __future__ import annotations

from typing import NamedTuple

_LAYERS = "decoder.layers."
_RENAMED = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}
_WITH_EXTRA_STATE = (
    "self_attention.linear_proj",
    "self_attention.linear_qkv",
    "mlp.linear_fc1",
    "mlp.linear_fc2",
)


class Location(NamedTuple):
    """The stored tensor's key, and the row of its first dimension (None: the whole tensor)."""

    key: str
    layer: int | None


def locate(parameter: str) -> Location:
    """The location of a parameter of ``GPTModel``, e.g. ``decoder.layers.3.input_layernorm.weight``."""
    if not parameter.startswith(_LAYERS):
        return Location(parameter, None)
    index, _, rest = parameter.removeprefix(_LAYERS).partition(".")
    for ours, stored in _RENAMED.items():
        if rest.startswith(ours):
            rest = stored + rest.removeprefix(ours)
    return Location(_LAYERS + rest, int(index))


def extra_state_keys(num_layers: int) -> list[str]:
    """Keys of the empty objects that Megatron expects beside the linear layers' weights."""
    return [
        f"{_LAYERS}{module}._extra_state/shard_{index}_{num_layers}"
        for index in range(num_layers)
        for module in _WITH_EXTRA_STATE
    ]
