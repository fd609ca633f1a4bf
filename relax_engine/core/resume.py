"""Where a run starts: a checkpoint to continue from, or the beginning."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relax_engine.checkpoint.errors import CheckpointNotFoundError
from relax_engine.checkpoint.manager import CheckpointManager, SavedCheckpoint, read_marker
from relax_engine.components.actor import RUN_STATE
from relax_engine.components.critic_settings import critic_roots
from relax_engine.config import RunConfig
from relax_engine.config.critic import uses_critic

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """`iteration` steps are done; `directory` holds the actor after them, `critic` the critic; both None without."""

    iteration: int = 0
    directory: str | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    weights_only: bool = False
    critic: str | None = None

    def directory_of(self, role: str) -> str | None:
        """What `role` continues from."""
        return self.critic if role == "critic" else self.directory


def find_resume_point(config: RunConfig) -> ResumePoint:
    """The newest complete checkpoint under `--load`, if there is one; with a critic, the newest that both have.

    Raises:
        CheckpointNotFoundError: the run has a critic, and none of its checkpoints goes with one of the actor's; or the
            checkpoint has no optimizer state, and `only_load_weight` is not set.
    """
    flat = config.flat
    start = flat.start_rollout_id
    if flat.load is None or not Path(flat.load).is_dir():
        return ResumePoint(start or 0)
    latest = CheckpointManager(flat.load).latest()
    if latest is None:
        return ResumePoint(start or 0)
    critics = _critics(config)
    if (
        read_marker(latest.path).optimizer is False
        and (latest.path / RUN_STATE).is_file()
        and not flat.only_load_weight
    ):
        raise CheckpointNotFoundError(
            f"--load {flat.load}: {latest.path.name} was saved with --no-save-optim, so the run cannot go on from it; "
            "--only-load-weight starts a new one with its weights"
        )
    if flat.only_load_weight or not (latest.path / RUN_STATE).is_file():
        # Weights alone (an imported model, or asked for): training starts anew from them.
        return ResumePoint(start or 0, str(latest.path), weights_only=True, critic=critics.get(latest.iteration))
    if uses_critic(config):
        latest = _newest_with_critic(config, critics)
    state = json.loads((latest.path / RUN_STATE).read_text())
    iteration = latest.iteration if start is None else start
    return ResumePoint(iteration, str(latest.path), state, critic=critics.get(latest.iteration))


def newest_of_run(config: RunConfig, run_id: str) -> ResumePoint | None:
    """The newest complete checkpoint that the run `run_id` has saved; others in the same directory are not its own."""
    if config.flat.save is None:
        return None
    critics = _critics(config)
    for saved in reversed(CheckpointManager(config.flat.save).complete()):
        path = saved.path / RUN_STATE
        if not path.is_file() or (uses_critic(config) and saved.iteration not in critics):
            continue
        state = json.loads(path.read_text())
        if state.get("run_id") == run_id:
            return ResumePoint(saved.iteration, str(saved.path), state, critic=critics.get(saved.iteration))
    return None


def _critics(config: RunConfig) -> dict[int, str]:
    """The critic's complete checkpoints by iteration."""
    if not uses_critic(config):
        return {}
    saved = [saved for root in reversed(critic_roots(config)) for saved in CheckpointManager(root).complete()]
    return {each.iteration: str(each.path) for each in saved}


def _newest_with_critic(config: RunConfig, critics: Mapping[int, str]) -> SavedCheckpoint:
    for saved in reversed(CheckpointManager(config.flat.load).complete()):
        if saved.iteration in critics:
            return saved
        logger.warning("passing over checkpoint %s: there is no critic of iteration %d", saved.path, saved.iteration)
    raise CheckpointNotFoundError(
        f"--load {config.flat.load} has checkpoints, but none of their iterations has a critic in "
        f"{' or '.join(critic_roots(config))} (it has {sorted(critics) or 'none'}); name its directory with "
        "--critic-load, or start a new critic on the actor's weights with --only-load-weight"
    )
