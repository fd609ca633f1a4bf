"""Rules about low-rank adapters."""

from __future__ import annotations

from pathlib import Path

from relax_engine.config.fields import all_fields
from relax_engine.config.roles import has_teacher_role
from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig
from relax_engine.config.sections.lora import LORA_TARGETS


@rule
def adapters_are_on(config: RunConfig, report: Reporter) -> Findings:
    """Flags of adapters act only with a rank."""
    given = [name for name in config.changed() if all_fields()[name].section == "lora"]
    if given and not config.lora.lora_rank:
        yield report.warning(
            f"{' '.join(given)} lora_rank", "without effect: all weights are trained", "--lora-rank 16"
        )


@rule
def adapters_have_layers(config: RunConfig, report: Reporter) -> Findings:
    """Adapters are for known linear layers of the language model."""
    settings = config.lora
    if not settings.lora_rank:
        return
    unknown = [name for name in settings.lora_target_modules if name not in LORA_TARGETS]
    if unknown or not settings.lora_target_modules:
        what = f"{', '.join(unknown)}: no such layer" if unknown else "no layer is named"
        yield report.error("lora_target_modules", what, f"choose among {' '.join(LORA_TARGETS)}")


@rule
def adapters_are_all_that_changes(config: RunConfig, report: Reporter) -> Findings:
    """Nothing else of the model may need other weights than those under the adapters."""
    if not config.lora.lora_rank:
        return
    if config.algorithm.loss_type == "seq_cls":
        yield report.error(
            "lora_rank loss_type", "the score layer has to be trained, and adapters leave it as it is", "--lora-rank 0"
        )
    if config.checkpoint.ref_update_interval is not None:
        yield report.error(
            "lora_rank ref_update_interval",
            "the reference is the model without its adapters, and stays so",
            "leave out --ref-update-interval",
        )
    if config.distillation.use_opd and not has_teacher_role(config):
        yield report.error(
            "lora_rank opd_type",
            "the actor would have to hold the teacher's weights beside those under its adapters",
            "--opd-type sglang, or --fully-async",
        )
    if config.lora.lora_dropout and not config.supervised:
        yield report.warning(
            "lora_dropout", "rollouts are sampled without dropout, so training would be off-policy", "--lora-dropout 0"
        )


@rule
def first_adapters_exist(config: RunConfig, report: Reporter) -> Findings:
    """--lora-load is a PEFT directory."""
    path = config.lora.lora_load
    if path is not None and not Path(path, "adapter_config.json").is_file():
        yield report.error("lora_load", "no adapter_config.json there", "name a directory that PEFT wrote")
