"""Rules about restarts."""

from __future__ import annotations

from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig


@rule
def restarts_need_checkpoints(config: RunConfig, report: Reporter) -> Findings:
    """What --use-fault-tolerance cannot do without checkpoints, and costs without enough of them."""
    if not config.health.use_fault_tolerance:
        return
    saving = config.checkpoint
    if saving.save is None:
        yield report.warning(
            "use_fault_tolerance save",
            "when the actor dies, the run starts again from where it began",
            "--save DIR and --save-interval N",
        )
    elif saving.save_interval is None:
        yield report.warning(
            "use_fault_tolerance save save_interval",
            "the rows of all steps since the last checkpoint are kept in --run-dir, and without an interval that is "
            "all steps of the run",
            "--save-interval N",
        )


@rule
def restart_limit_needs_restarts(config: RunConfig, report: Reporter) -> Findings:
    """--max-global-restart alone restarts nothing."""
    if "max_global_restart" in config.changed() and not config.health.use_fault_tolerance:
        yield report.note("max_global_restart use_fault_tolerance", "nothing is restarted", "--use-fault-tolerance")
