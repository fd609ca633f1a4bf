"""When a role's checkpoints become complete, with `--async-save` and `--save-hf` or without.

What lives here: the order of writing, commit, export and deletion. What does not: what a checkpoint holds, and which
steps are saved.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.components.online_export import OnlineExport
from relax_engine.components.train_group import TrainGroup
from relax_engine.config import RunConfig


class CheckpointSaver:
    """Life of a checkpoint: `save` (copied, or written) -> written -> complete -> exported -> deleted.

    With `async_save`, `save` returns when the ranks hold a copy, and the checkpoint is completed by the next call of
    `save` or `settle`; a process killed before leaves a `.partial` directory, which nobody loads.
    """

    def __init__(
        self, config: RunConfig, group: TrainGroup, directory: str, *, keep: int | None = None, export: bool = False
    ) -> None:
        """`keep` limits complete checkpoints; with `export`, `--save-hf` is done if it is set."""
        self.manager = CheckpointManager(directory)
        self._args = config.flat
        self._group = group
        self._keep = keep
        self._pending: int | None = None
        self._export = OnlineExport(config) if export and self._args.save_hf else None

    def save(self, rollout_id: int, fill: Callable[[Path], None] = lambda _: None) -> bool:
        """Save the state after a rollout; `fill` adds files of the role. Whether it is complete already."""
        self.settle()
        directory = self.manager.begin(rollout_id + 1)
        try:
            self._group.save(str(directory), optimizer=not self._args.no_save_optim, deferred=self._args.async_save)
            fill(directory)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        self._pending = rollout_id
        if not self._args.async_save:
            self._complete(rollout_id)
        return not self._args.async_save

    def settle(self) -> None:
        """Complete what `save` began."""
        if self._pending is not None and self._args.async_save:
            self._group.finish_save()
            self._complete(self._pending)

    def finish(self) -> None:
        """Complete what `save` began, and wait for exports."""
        self.settle()
        if self._export is not None:
            self._export.settled(self._args.wait_timeout)

    def _complete(self, rollout_id: int) -> None:
        self._pending = None
        saved = self.manager.commit(rollout_id + 1, optimizer=not self._args.no_save_optim)
        if self._export is not None:
            if self._keep:
                self._export.settled(self._args.wait_timeout)  # it may read what is deleted below
            self._export.submit(saved.path, rollout_id)
        if self._keep:
            self.manager.prune(self._keep)
