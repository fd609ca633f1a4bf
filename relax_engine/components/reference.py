"""The reference policy of an actor that moves it: when, and where a checkpoint keeps it."""

from __future__ import annotations

from pathlib import Path

from relax_engine.components.train_group import TrainGroup, load_weights
from relax_engine.components.trainer import REFERENCE
from relax_engine.config import RunConfig
from relax_engine.config.roles import uses_reference

DIRECTORY = "reference"


def load_reference(group: TrainGroup, ref_load: str, resume_from: str | None) -> bool:
    """Load the reference that the checkpoint `resume_from` keeps, or the initial one; True for the former."""
    saved = Path(resume_from, DIRECTORY) if resume_from else None
    if saved is not None and saved.is_dir():
        group.load(str(saved), optimizer=False)
        return True
    load_weights(group, ref_load)
    return False


class MovingReference:
    """The actor's copy of the reference weights, replaced by the trained ones every `ref_update_interval` rollouts.

    The copy is kept where the actor computes with it (in process), or where a checkpoint has to hold
    it because it moves. Life: `load` -> for each rollout `moves_at` -> `move` -> `save`.
    """

    def __init__(self, config: RunConfig, group: TrainGroup, *, in_process: bool) -> None:
        self._group = group
        self._interval: int | None = config.flat.ref_update_interval if uses_reference(config) else None
        self._kept = uses_reference(config) and (in_process or self._interval is not None)
        self._moved = False
        self._ref_load: str = config.flat.ref_load

    def load(self, resume_from: str | None) -> bool:
        """Load the reference and keep a copy, leaving its weights in the model; False where the actor keeps none."""
        if not self._kept:
            return False
        self._moved = load_reference(self._group, self._ref_load, resume_from)
        self._group.snapshot(REFERENCE)
        return True

    def moves_at(self, version: int) -> bool:
        """Whether the weights of `version` become the reference."""
        return self._interval is not None and version % self._interval == 0

    def move(self) -> None:
        """Make the present weights the reference."""
        self._group.snapshot(REFERENCE)
        self._moved = True

    def save(self, checkpoint: Path) -> None:
        """Write the reference into a checkpoint, unless it is still the initial one."""
        if self._moved:
            self._group.save_snapshot(REFERENCE, str(checkpoint / DIRECTORY))
