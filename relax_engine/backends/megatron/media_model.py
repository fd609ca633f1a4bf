"""The encoders inside a model, and what they add to its text embeddings and first layers.

What lives here: encoding a micro-batch's media on the first pipeline stage, the merge, deepstack, freezing parts. What
does not: the encoders (`relax_engine.multimodal.towers`), which features go where (`media_rows.py`).

Every tensor- and context-parallel rank has the whole of the encoders and encodes all media of the micro-batch. The
gradient that reaches the embeddings is the same on all tensor-parallel ranks, and so is the encoders'; context-parallel
ranks have the parts of their own tokens, which the gradient all-reduce adds up, as it does for the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from megatron.core.tensor_parallel import scatter_to_sequence_parallel_region
from torch import Tensor

from relax_engine.backends.megatron.rows import RowGather
from relax_engine.multimodal.families import MediaFamily
from relax_engine.multimodal.towers import MediaTower

FROZEN_PARTS: Mapping[str, tuple[str, ...]] = {
    "vision_projection": ("media.visual.merger.", "media.visual.deepstack_merger_list."),
    "vision_model": ("media.visual.",),
    "audio_projection": ("media.audio_tower.proj1.", "media.audio_tower.proj2."),
    "audio_model": ("media.audio_tower.",),
    "language_model": ("",),
}
"""Beginnings of the names of each part's parameters; a parameter belongs to the first part that it fits."""


@dataclass(frozen=True, slots=True)
class MediaInput:
    """What the first pipeline stage needs of a micro-batch with media.

    `tensors` are the processor's, of all media; `tokens` and `features` (int64 `[n]`) say which of this rank's tokens
    each feature stands in the place of.
    """

    tensors: Mapping[str, Tensor]
    tokens: np.ndarray
    features: np.ndarray

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], features: np.ndarray) -> MediaInput:
        """From the feature of each token, -1 for text."""
        tokens = np.flatnonzero(features >= 0)
        return cls(tensors, tokens, features[tokens])


class Embedded:
    """Embeddings with features in the place of placeholders, and what deepstack adds behind the first layers."""

    def __init__(self, text: Tensor, tower: MediaTower, media: MediaInput | None, *, sequence_parallel: bool) -> None:
        """`text` is `[tokens, 1, hidden]`, whole under sequence parallelism too; the results are this rank's part."""
        found = None if media is None else tower.encode(media.tensors)
        self.deepstack: tuple[Tensor, ...] = ()
        hidden = text
        if media is not None and found is not None:
            chosen = RowGather(media.features, len(found.embeddings), text.device)
            tokens = torch.from_numpy(media.tokens).to(text.device)
            hidden = text.index_copy(0, tokens, chosen(found.embeddings).to(text.dtype)[:, None])
            visual = media.features < (len(found.deepstack[0]) if found.deepstack else 0)
            seen = torch.from_numpy(media.tokens[visual]).to(text.device)
            for level in found.deepstack:
                rows = RowGather(media.features[visual], len(level), text.device)(level)
                added = torch.zeros_like(text).index_copy(0, seen, rows.to(text.dtype)[:, None])
                self.deepstack += (scatter_to_sequence_parallel_region(added) if sequence_parallel else added,)
        if sequence_parallel:
            hidden = scatter_to_sequence_parallel_region(hidden).clone()  # a view would keep the whole
        if self.deepstack and torch.is_grad_enabled():
            leaves = tuple(level.detach().requires_grad_(level.requires_grad) for level in self.deepstack)
            hidden = _Joined.apply(hidden, leaves, *self.deepstack)
            self.deepstack = leaves
        if torch.is_grad_enabled() and not hidden.requires_grad:
            hidden = hidden.detach().requires_grad_()  # text alone, and the text model frozen: still a backward pass
        self.hidden = hidden


class _Joined(torch.autograd.Function):
    """Passes the embeddings on, and hands deepstack's gradients to the encoders together with theirs.

    Layers read `leaves`, copies without history. Layers that are computed again in the backward pass run a backward
    pass of their own, which would otherwise walk through the encoders once for each layer. The embeddings' gradient is
    the last to come, when the leaves have all of theirs.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, leaves: tuple[Tensor, ...], *_: Tensor) -> Tensor:
        ctx.leaves = leaves
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], None, *(leaf.grad for leaf in ctx.leaves)


def add_tower(chunk: Any, family: MediaFamily, *, dtype: torch.dtype, device: torch.device) -> None:
    """Give the first stage's chunk its encoders, and its first layers their hook for deepstack."""
    chunk.media = MediaTower(family, dtype=dtype, device=device)
    for layer in chunk.decoder.layers[: family.deepstack]:
        layer.register_forward_hook(_add_deepstack, with_kwargs=True)


def _add_deepstack(layer: Any, _: Any, arguments: dict[str, Any], output: Any) -> Any:
    """A layer's output `(hidden states, context)` with what its place in deepstack adds."""
    deepstack = arguments["packed_seq_params"].deepstack
    if not deepstack:
        return output
    hidden, context = output
    return hidden + deepstack[layer.layer_number - 1], context


def freeze(parameters: Mapping[str, torch.nn.Parameter], parts: frozenset[str]) -> None:
    """No gradients for the parameters (by whole-model name) of these parts.

    Raises:
        ValueError: nothing is left to train on this rank.
    """
    for name, parameter in parameters.items():
        if next(part for part, beginnings in FROZEN_PARTS.items() if name.startswith(beginnings)) in parts:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ValueError(
            f"freezing {', '.join(sorted(parts))} leaves a pipeline stage without anything to train; freeze less, or "
            "use --pipeline-model-parallel-size 1 where encoders alone are trained"
        )
