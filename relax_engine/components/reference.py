"""The reference policy of an actor that moves it: when, and where a checkpoint and a run keep it."""

from __future__ import annotations

import shutil
from pathlib import Path

from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.components.mode import computes_in_process, forward_columns
from relax_engine.components.role import RoleContext
from relax_engine.components.train_group import TrainGroup, load_weights
from relax_engine.components.trainer import REFERENCE
from relax_engine.config.roles import uses_reference

DIRECTORY = "reference"
"""In a checkpoint iteration, and in the run directory."""
_KEPT = 2  # the newest, and the one before it, which a role that is starting may be reading


def kept_in_checkpoint(context: RoleContext) -> Path | None:
    """The reference in the checkpoint to continue from; None where that has none, because it is the initial one."""
    saved = Path(context.resume_from, DIRECTORY) if context.resume_from else None
    return saved if saved is not None and saved.is_dir() else None


def load_reference(group: TrainGroup, context: RoleContext) -> None:
    """Load the reference of the present moment into a role that holds nothing else.

    When the run starts that is its checkpoint's, or the initial one. A role that is started again takes what the
    actor has put into the run directory since.
    """
    if context.restarts:
        shared = _shared(context).latest()
        _load(group, context, None if shared is None else shared.path)
    else:
        _load(group, context, kept_in_checkpoint(context))


def _load(group: TrainGroup, context: RoleContext, directory: Path | None) -> None:
    if directory is None:
        load_weights(group, context.config.flat.ref_load)
    else:
        group.load(str(directory), optimizer=False)


def _shared(context: RoleContext) -> CheckpointManager:
    return CheckpointManager(Path(context.run_dir, DIRECTORY))


class MovingReference:
    """The actor's copy of the reference weights, replaced by the trained ones every `ref_update_interval` rollouts.

    The copy is kept where the actor computes with it (in process), or where a checkpoint has to hold it because it
    moves, or has moved. Where a reference role may be started again, each new one is also a checkpoint in the run
    directory, numbered by its version. Life: `load` -> for each rollout `moves_at` -> `move` -> `save`.
    """

    def __init__(self, context: RoleContext, group: TrainGroup) -> None:
        config = context.config
        self._context = context
        self._group = group
        self._interval: int | None = config.flat.ref_update_interval if uses_reference(config) else None
        self._saved = kept_in_checkpoint(context)
        moves = self._interval is not None or self._saved is not None
        self._kept = uses_reference(config) and (computes_in_process(config) or moves)
        self._moved = False
        role = config.flat.use_fault_tolerance and "reference" in forward_columns(config)
        self._shared = _shared(context) if role else None

    def load(self) -> bool:
        """Load the reference and keep a copy, leaving its weights in the model; False where the actor keeps none."""
        first = not self._context.restarts
        if self._shared is not None and first and self._shared.root.exists():
            shutil.rmtree(self._shared.root)
        if not self._kept:
            return False
        _load(self._group, self._context, self._saved)
        self._group.snapshot(REFERENCE)
        self._moved = self._saved is not None
        if self._moved and first:
            self._share(0)  # older than whatever the run makes
        return True

    def moves_at(self, version: int) -> bool:
        """Whether the weights of `version` become the reference."""
        return self._interval is not None and version % self._interval == 0

    def moved_at(self, version: int) -> bool:
        """Whether the weights of `version` became the reference in this run, so that its role should hold them.

        True also for an actor that is started again behind the checkpoint that its predecessor saved last, and that
        nobody may have been sent.
        """
        if not self.moves_at(version):
            return False
        shared = self._shared is not None and self._context.restarts and self._shared.path(version).is_dir()
        return version > self._context.start_step or bool(shared)

    def move(self, version: int) -> None:
        """Make the present weights, of `version`, the reference."""
        self._group.snapshot(REFERENCE)
        self._moved = True
        self._share(version)

    def save(self, checkpoint: Path) -> None:
        """Write the reference into a checkpoint, unless it is still the initial one."""
        if self._moved:
            self._group.save_snapshot(REFERENCE, str(checkpoint / DIRECTORY))

    def _share(self, version: int) -> None:
        """Leave the reference for a role that is started again."""
        if self._shared is None:
            return
        with self._shared.writing(version) as directory:
            self._group.save_snapshot(REFERENCE, str(directory))
        self._shared.prune(_KEPT)
