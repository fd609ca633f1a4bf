"""The encoders of a model that reads media, with the engine's weights.

What lives here: loading them, and encoding a prompt's media. What does not: the encoders
(`relax_engine.multimodal.towers`), and where media stand in a prompt (`media.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from relax_engine.backends.engines.local.media import MediaPrompt, PrefixMedia
from relax_engine.multimodal.families import MediaFamily
from relax_engine.multimodal.towers import MediaTower


class EngineTower:
    """The encoders, in evaluation mode."""

    def __init__(self, family: MediaFamily, *, dtype: torch.dtype, device: torch.device) -> None:
        """Without weights: `load` comes first."""
        self.family = family
        with torch.inference_mode(False):
            self._tower = MediaTower(family, dtype=dtype, device=device).eval().requires_grad_(False)

    def load(self, raw: Mapping[str, Tensor]) -> None:
        """Take the parameters among `raw`, by Hugging Face name."""
        for name, parameter in self._tower.named_parameters():
            parameter.data.copy_(raw[f"{self.family.prefix}{name}"])

    def encode(self, media: MediaPrompt, length: int) -> PrefixMedia:
        """What stands in the place of a prompt's placeholders, in a prefix of `length` tokens that begins with it."""
        features = self._tower.encode(media.inputs)
        embeddings = features.embeddings
        tokens = torch.from_numpy(media.places.tokens).to(embeddings.device)
        rows = torch.from_numpy(media.places.features).to(embeddings.device)
        deepstack = []
        for layer in features.deepstack:
            whole = torch.zeros_like(embeddings)  # the features of audio add nothing
            whole[: len(layer)] = layer
            deepstack.append(whole.index_select(0, rows))
        return PrefixMedia(tokens, embeddings.index_select(0, rows), tuple(deepstack), media.positions_of(length))
