"""Keeping what a run did, and running parts of it alone."""

from __future__ import annotations

from relax_engine.config.sections.base import Section


class Debug(Section):
    """Recorded rollouts and steps, to be looked at, trained on again or recomputed."""

    dump_details: str | None = None
    """Directory for a replay bundle: the configuration, every rollout's samples and every step's columns.
    `relax replay DIRECTORY` recomputes rewards, advantages and losses from it."""

    save_debug_rollout_data: str | None = None
    """File for the samples of each rollout, JSON lines; `{rollout_id}` in it is replaced.
    Default: `rollout_data/{rollout_id}.jsonl` in `--dump-details`."""

    save_debug_train_data: str | None = None
    """File for the columns of each step that was trained, NumPy's `.npz`; `{rollout_id}` in it is replaced.
    Default: `train_data/{rollout_id}.npz` in `--dump-details`."""

    load_debug_rollout_data: str | None = None
    """Train on the samples that `--save-debug-rollout-data` wrote, without engines; `{rollout_id}` is replaced."""

    debug_rollout_only: bool = False
    """Sample and score without training: the weights stay those of `--hf-checkpoint`."""

    debug_train_only: bool = False
    """Train without sampling; needs `--load-debug-rollout-data`, which implies it."""
