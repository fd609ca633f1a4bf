"""Which experts the tokens of a forward pass were sent to, for trainers that replay the choice.

What lives here: collecting the choices of all layers of one pass. What does not: choosing (`experts.py`), keeping them
until their request is answered (`kv_cache.py`, `request.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from relax_engine.backends.engines.local.arch import Architecture


class RoutedExperts:
    """The choices of the newest forward pass; layers without experts have zeros."""

    def __init__(self, arch: Architecture) -> None:
        assert arch.spec.experts is not None
        self._layers, self._top_k = arch.spec.num_layers, arch.spec.experts.top_k
        self._chosen: dict[int, Tensor] = {}

    @property
    def width(self) -> int:
        """Choices for one token: layers times experts for each."""
        return self._layers * self._top_k

    def note(self, layer: int) -> Callable[[Tensor], None]:
        """What takes the choices `[rows, experts for each]` of a layer."""
        return partial(self._chosen.__setitem__, layer)

    def taken(self, rows: int) -> Tensor:
        """The choices for the first `rows` tokens of the pass, int16 `[rows, width]`, layer by layer."""
        device = next(iter(self._chosen.values())).device
        taken = torch.zeros(rows, self._layers, self._top_k, dtype=torch.int16, device=device)
        for layer, chosen in self._chosen.items():
            taken[:, layer] = chosen[:rows]
        return taken.flatten(1)
