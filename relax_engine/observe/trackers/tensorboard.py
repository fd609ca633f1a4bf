"""TensorBoard: event files in `tensorboard` in the run directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from relax_engine.observe.trackers.tracker import require


class TensorBoard:
    """One scalar a metric. Steps that are done again replace the earlier ones when TensorBoard reads the files."""

    def __init__(self, directory: Path) -> None:
        self._writer_class = require("torch.utils.tensorboard", "use-tensorboard").SummaryWriter
        self._directory = directory
        self._writer = self._writer_class(str(directory), purge_step=0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def rewind(self, step: int) -> None:
        self._writer.close()
        self._writer = self._writer_class(str(self._directory), purge_step=step)

    def close(self) -> None:
        self._writer.close()
