"""Copies of a model's weights under names, swapped in for a forward pass.

What lives here: the reference and old policies of a process that trains, without a second model. What
does not: anything that trains; the optimizer's own copies never change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


class WeightSnapshots:
    """Named copies in host memory. While one is in use, the present weights wait in its place."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        """`parameters` are those that differ between copies."""
        self._parameters = parameters
        self._copies: dict[str, list[Tensor]] = {}

    def keep(self, name: str) -> None:
        """Copy the present weights under `name`, replacing an earlier copy."""
        self._copies[name] = [parameter.detach().to("cpu", copy=True) for parameter in self._parameters]

    def discard(self, name: str) -> None:
        """Give up the copy `name`.

        Raises:
            KeyError: no such copy.
        """
        del self._copies[name]

    @contextlib.contextmanager
    def using(self, name: str | None) -> Iterator[None]:
        """Compute with the copy `name` inside the block; None leaves the present weights in place.

        Raises:
            KeyError: no such copy.
        """
        if name is None:
            yield
            return
        copies = self._copies[name]
        self._exchange(copies)
        try:
            yield
        finally:
            self._exchange(copies)

    @torch.no_grad()
    def _exchange(self, copies: list[Tensor]) -> None:
        for parameter, copy in zip(self._parameters, copies, strict=True):
            present = parameter.detach().to("cpu", copy=True)
            parameter.copy_(copy)
            copy.copy_(present)
