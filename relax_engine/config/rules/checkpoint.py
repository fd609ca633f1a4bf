"""Rules about saving, resuming and evaluation."""

from __future__ import annotations

from pathlib import Path

from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig


@rule
def saving_needs_a_directory(config: RunConfig, report: Reporter) -> Findings:
    """Intervals and limits of checkpoints need --save."""
    for name in ("save_interval", "max_actor_ckpt_to_keep", "save_hf", "async_save", "no_save_optim"):
        if getattr(config.checkpoint, name) and config.checkpoint.save is None:
            yield report.error(f"{name} save", "there is no directory to save to", "--save DIR")


@rule
def recovery_needs_whole_checkpoints(config: RunConfig, report: Reporter) -> Findings:
    """A run that goes on from its own checkpoints needs their optimizer state, complete when the step ends."""
    for name in ("async_save", "no_save_optim"):
        if getattr(config.checkpoint, name) and config.health.use_fault_tolerance:
            yield report.error(
                f"{name} use_fault_tolerance",
                "a role that dies is started again from the checkpoint of the step before",
                f"leave out --{name.replace('_', '-')}",
            )


@rule
def exports_have_names_of_their_own(config: RunConfig, report: Reporter) -> Findings:
    """Every export needs a place of its own, and blocks have a size."""
    settings = config.checkpoint
    if settings.save_hf is not None:
        try:
            distinct = settings.save_hf.format(rollout_id=1) != settings.save_hf.format(rollout_id=2)
        except (KeyError, IndexError, ValueError):
            yield report.error("save_hf", "only {rollout_id} can be filled in", "--save-hf DIR/iter_{rollout_id}")
            return
        if not distinct:
            yield report.warning(
                "save_hf", "each export replaces the one before", "--save-hf DIR/iter_{rollout_id} to keep them"
            )
    elif settings.save_hf_dtype == "fp8" or settings.save_hf_post_hook_path is not None:
        yield report.error("save_hf_dtype save_hf_post_hook_path save_hf", "nothing is exported", "--save-hf DIR")
    if min(settings.save_hf_fp8_block_size) < 1:
        yield report.error("save_hf_fp8_block_size", "a block has rows and columns", "--save-hf-fp8-block-size 128 128")


@rule
def reference_exists(config: RunConfig, report: Reporter) -> Findings:
    """--ref-load is a directory."""
    given = config.explicit().get("ref_load")
    if given is not None and not Path(given).is_dir():
        yield report.error(
            "ref_load", "no such directory", "name a model directory, or leave it out to use --hf-checkpoint"
        )


@rule
def resume_finds_a_checkpoint(config: RunConfig, report: Reporter) -> Findings:
    """Say so when --load holds no complete checkpoint."""
    load = config.checkpoint.load
    if load is not None and "://" not in load and not (Path(load) / "latest_checkpointed_iteration.txt").is_file():
        yield report.note(
            "load",
            "no complete checkpoint there yet: the run starts at rollout 0 from --ref-load or --hf-checkpoint",
        )


@rule
def evaluation_has_data(config: RunConfig, report: Reporter) -> Findings:
    """The interval and the prompts of evaluation come together."""
    evaluation = config.evaluation
    if evaluation.eval_interval is not None and not evaluation.eval_prompt_data:
        yield report.error(
            "eval_interval eval_prompt_data", "there is nothing to evaluate on", "--eval-prompt-data name FILE"
        )
    if evaluation.eval_interval is None and evaluation.eval_prompt_data:
        yield report.note("eval_prompt_data eval_interval", "not evaluated during training", "--eval-interval N")
