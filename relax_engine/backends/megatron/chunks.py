"""A rank's chunks of the model as one: their parameters under the names of the whole model.

What lives here: `ModelChunks` and the numbering of layers and experts. What does not: how a chunk is built
(`model.py`), moving tensors between ranks (`weights.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from megatron.core import parallel_state
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor

if TYPE_CHECKING:
    from relax_engine.backends.megatron.model import ResponseModel

_LAYER = re.compile(r"^(decoder\.layers\.)(\d+)(\..*)$")
_EXPERT = re.compile(r"^(.*\.local_experts\.)(\d+)(\..*)$")
ADAPTER = ".adapter."
EMBEDDING, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"


class NamedParameters(Protocol):
    """Parameters on this rank by their names in the whole model."""

    @property
    def tied_copy(self) -> torch.nn.Parameter | None:
        """The last stage's copy of a tied embedding that the first stage has."""

    def named_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Parameters by name, without `tied_copy`."""


class ModelChunks:
    """One chunk, or several where pipeline stages are interleaved. Earlier chunks come first."""

    def __init__(self, chunks: Sequence[ResponseModel]) -> None:
        self.chunks = list(chunks)
        self._own: dict[str, tuple[int, str]] = {}
        self.note_parameters()

    def note_parameters(self) -> None:
        """Take note of the parameters that the chunks have now."""
        self._own = {name: (number, local) for number, local, name in self._names()}

    def _names(self) -> Iterator[tuple[int, str, str]]:
        for number, chunk in enumerate(self.chunks):
            offset = get_transformer_layer_offset(chunk.config, chunk.vp_stage)
            for local, _ in chunk.named_parameters():
                yield number, local, _whole_name(local, offset, chunk.config.num_moe_experts)

    def modules(self, weights: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """The modules on this rank that have one of `weights`, by its name in the whole model."""
        for weight in weights:
            if weight in self._own:
                number, local = self._own[weight]
                yield weight, self.chunks[number].get_submodule(local.rpartition(".")[0])

    def named_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Parameters on this rank by their names in the whole model, without adapters and the copy of a tied
        embedding."""
        own = [dict(chunk.named_parameters()) for chunk in self.chunks]
        named = {name: own[number][local] for name, (number, local) in self._own.items() if ADAPTER not in name}
        if self.tied_copy is not None:
            del named[OUTPUT]
        return named

    @property
    def tied_copy(self) -> torch.nn.Parameter | None:
        """The last stage's copy of a tied embedding that the first stage has."""
        last = self.chunks[-1]
        tied = last.post_process and not last.pre_process and last.share_embeddings_and_output_weights
        return last.output_layer.weight if tied else None

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """All parameters on this rank, copies too."""
        for chunk in self.chunks:
            yield from chunk.parameters()

    def freeze(self) -> None:
        """No gradients, and evaluation mode."""
        for chunk in self.chunks:
            chunk.requires_grad_(False).eval()

    def sharded_state_dict(self, absent: Mapping[str, Tensor]) -> dict[str, Any]:
        """Megatron's sharded objects of each chunk, without the parameters `absent`."""
        states = [chunk.sharded_state_dict() for chunk in self.chunks]
        for name in absent:
            if name in self._own:
                number, local = self._own[name]
                del states[number][local]
        return {str(number): state for number, state in enumerate(states)}

    def load_state_dict(self, states: Mapping[str, dict[str, Any]], absent: Mapping[str, Tensor]) -> None:
        """Take over what `sharded_state_dict` described, and the values of `absent`."""
        for number, chunk in enumerate(self.chunks):
            rest = {self._own[name][1]: tensor for name, tensor in absent.items() if self._holder(name) == number}
            chunk.load_state_dict(states[str(number)] | rest)

    def _holder(self, name: str) -> int | None:
        return self._own[name][0] if name in self._own else None


def _whole_name(local: str, layers_before: int, experts: int | None) -> str:
    """The name in the whole model of a chunk's parameter."""
    layer = _LAYER.match(local)
    if layer is None:
        return local
    name = f"{layer[1]}{int(layer[2]) + layers_before}{layer[3]}"
    expert = _EXPERT.match(name)
    if expert is None:
        return name
    on_this_rank = (experts or 1) // parallel_state.get_expert_model_parallel_world_size()
    number = int(expert[2]) + on_this_rank * parallel_state.get_expert_model_parallel_rank()
    return f"{expert[1]}{number}{expert[3]}"
