"""Rules about recorded rollouts and runs of one part alone."""

from __future__ import annotations

from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig


@rule
def one_part_alone(config: RunConfig, report: Reporter) -> Findings:
    """A run samples, or trains on what was sampled before."""
    debug = config.debug
    if debug.debug_rollout_only and debug.debug_train_only:
        yield report.error(
            "debug_rollout_only debug_train_only load_debug_rollout_data",
            "a run that only samples and only trains does nothing",
            "keep one of them",
        )
    elif debug.debug_train_only and debug.load_debug_rollout_data is None:
        yield report.error(
            "debug_train_only load_debug_rollout_data",
            "there is nothing to train on without sampling",
            "--load-debug-rollout-data PATH/{rollout_id}.jsonl, as --save-debug-rollout-data wrote it",
        )


@rule
def recorded_files_have_names(config: RunConfig, report: Reporter) -> Findings:
    """Every rollout has a file of its own."""
    for name in ("save_debug_rollout_data", "save_debug_train_data", "load_debug_rollout_data"):
        value = getattr(config.debug, name)
        if value is not None and "{rollout_id}" not in value:
            yield report.error(name, "all rollouts would share one file", f"{value}.{{rollout_id}}")


@rule
def evaluation_needs_engines(config: RunConfig, report: Reporter) -> Findings:
    """Without engines nothing is evaluated."""
    if config.debug.debug_train_only and config.evaluation.eval_interval is not None:
        yield report.note("debug_train_only eval_interval", "there are no engines, so nothing is evaluated")
