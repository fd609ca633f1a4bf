"""Tensors that an export takes from the original model, because training does not touch them.

What lives here: layers for the prediction of further tokens (`num_nextn_predict_layers`). What does not: what is in the
checkpoint (`exporter.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch
from torch import Tensor

from relax_engine.checkpoint.errors import CheckpointNotFoundError
from relax_engine.checkpoint.files import Place
from relax_engine.checkpoint.hf_reader import HfReader
from relax_engine.checkpoint.mapping import WeightMap, carries
from relax_engine.checkpoint.safetensors_writer import PlannedTensor

logger = logging.getLogger(__name__)


class Carried:
    """What a model directory has beside the model that is trained, in the order of its names."""

    def __init__(self, origin: Place, weights: WeightMap) -> None:
        """Without such layers, or without weights at `origin`, there is nothing."""
        self._reader = _reader(origin) if weights.spec.mtp_layers else None
        stored = () if self._reader is None else self._reader.names()
        self.names = sorted(name for name in stored if carries(weights.spec, name))

    def plan(self, target: torch.dtype | None) -> list[PlannedTensor]:
        """The tensors, of type `target`, or as stored."""
        if self._reader is None:
            return []
        shape, dtype = self._reader.shape, self._reader.dtype
        return [PlannedTensor(name, shape(name), target or dtype(name)) for name in self.names]

    def stream(self) -> Iterator[tuple[str, list[Tensor]]]:
        """Their values, in the plan's order."""
        if self._reader is not None:
            for name in self.names:
                yield name, [self._reader.tensor(name)]


def _reader(origin: Place) -> HfReader | None:
    try:
        return HfReader(origin)
    except CheckpointNotFoundError as error:
        logger.warning("the layers for further tokens are left out: %s", error)
        return None
