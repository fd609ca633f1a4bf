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
        self.names: list[str] = []
        if not weights.spec.mtp_layers:
            return
        try:
            self._reader = HfReader(origin)
        except CheckpointNotFoundError as error:
            logger.warning("the layers for further tokens are left out: %s", error)
            return
        self.names = sorted(name for name in self._reader.names() if carries(weights.spec, name))

    def plan(self, target: torch.dtype | None) -> list[PlannedTensor]:
        """The tensors, of type `target`, or as stored."""
        shape, dtype = self._reader.shape, self._reader.dtype
        return [PlannedTensor(name, shape(name), target or dtype(name)) for name in self.names]

    def stream(self) -> Iterator[tuple[str, list[Tensor]]]:
        """Their values, in the plan's order."""
        return ((name, [self._reader.tensor(name)]) for name in self.names)
