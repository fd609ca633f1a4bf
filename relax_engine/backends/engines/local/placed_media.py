"""The media of prompts that are computed together: positions of all their tokens, and what goes into which row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from relax_engine.backends.engines.local.media import PrefixMedia


class PlacedMedia:
    """Media of prompts that are padded on the left to one length."""

    def __init__(self, media: Sequence[PrefixMedia | None], positions: Tensor, pads: Tensor) -> None:
        """`positions` int64 `[prompts, length]` are those of text, `pads` int64 `[prompts]` the padding."""
        self._media, self._pads = media, pads.tolist()
        self.positions = positions.float().expand(3, -1, -1).clone()
        """float32 `[3, prompts, length]`."""
        for prompt, (each, pad) in enumerate(zip(media, self._pads, strict=True)):
            if each is not None:
                self.positions[:, prompt, pad:] = torch.from_numpy(each.positions).to(self.positions)

    def injection(self, begin: int, end: int) -> Callable[[int, Tensor], None]:
        """Puts media into the hidden states `[prompts * (end - begin), hidden]` of columns `[begin, end)`."""
        parts = []
        for prompt, (media, pad) in enumerate(zip(self._media, self._pads, strict=True)):
            if media is None:
                continue
            columns = media.tokens + pad
            inside = ((columns >= begin) & (columns < end)).nonzero().squeeze(1)
            if len(inside):
                parts.append((columns[inside] - begin + prompt * (end - begin), inside, media))

        def inject(layers: int, states: Tensor) -> None:
            for rows, inside, media in parts:
                if layers == 0:
                    states[rows] = media.embeddings[inside].to(states.dtype)
                elif layers <= len(media.deepstack):
                    states[rows] += media.deepstack[layers - 1][inside].to(states.dtype)

        return inject
