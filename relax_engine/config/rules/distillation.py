"""Rules about on-policy distillation: one mode, a divergence that can be computed, and a teacher to ask."""

from __future__ import annotations

from relax_engine.config.fields import all_fields
from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig


@rule
def distillation_is_on(config: RunConfig, report: Reporter) -> Findings:
    """Flags of distillation act only with --use-opd."""
    given = [name for name in config.changed() if all_fields()[name].section == "distillation" and name != "use_opd"]
    if given and not config.distillation.use_opd:
        yield report.warning(f"{' '.join(given)} use_opd", "without effect", "add --use-opd")


@rule
def distillation_has_one_mode(config: RunConfig, report: Reporter) -> Findings:
    """The divergence enters the advantage or the loss."""
    settings = config.distillation
    if not settings.use_opd:
        return
    if settings.opd_loss_coef and "opd_kl_coef" in config.explicit() and settings.opd_kl_coef:
        yield report.error(
            "opd_kl_coef opd_loss_coef",
            "the divergence would count twice, in the advantage and in the loss",
            "set one of them to 0",
        )
    if not settings.opd_loss_coef and not settings.opd_kl_coef:
        yield report.error("opd_kl_coef opd_loss_coef", "the teacher has no weight", "--opd-kl-coef 1")
    if settings.opd_is_clip is not None and not settings.opd_loss_coef:
        yield report.warning("opd_is_clip opd_loss_coef", "without effect in the advantage", "remove --opd-is-clip")


@rule
def divergence_can_be_computed(config: RunConfig, report: Reporter) -> Findings:
    """What is known of the teacher is enough for the divergence, and its gradient means something."""
    settings = config.distillation
    if not settings.use_opd:
        return
    if not settings.opd_log_prob_top_k and settings.opd_kl_type in ("forward_kl", "jsd"):
        yield report.error(
            "opd_kl_type opd_log_prob_top_k",
            "this divergence needs the probabilities of more tokens than the sampled one",
            "--opd-log-prob-top-k 16",
        )
    if settings.opd_log_prob_top_k and settings.opd_kl_type == "low_var_kl":
        yield report.error(
            "opd_kl_type opd_log_prob_top_k",
            "this is an estimate from the sampled token, and more tokens are known",
            "--opd-kl-type reverse_kl",
        )
    sampled_loss = settings.opd_loss_coef and not settings.opd_log_prob_top_k and settings.opd_kl_type == "reverse_kl"
    if sampled_loss and settings.opd_is_clip is None:
        yield report.warning(
            "opd_loss_coef opd_kl_type opd_is_clip",
            "without the weight of the sampling the gradient of this loss is zero on average",
            "--opd-is-clip 10, or --opd-kl-coef in place of --opd-loss-coef",
        )
    if config.rollout.rollout_temperature != 1.0:
        yield report.warning(
            "rollout_temperature use_opd",
            "the teacher's log-probs are at temperature 1, the student's at the sampling temperature",
            "--rollout-temperature 1",
        )


@rule
def there_is_a_teacher(config: RunConfig, report: Reporter) -> Findings:
    """Exactly one kind of teacher is named, and it fits the type."""
    settings = config.distillation
    if not settings.use_opd:
        return
    served = ("opd_teacher_url", "opd_teacher_routes", "teacher_hf_checkpoint")
    named = [name for name in (*served, "opd_teacher_load") if getattr(settings, name)]
    fitting = ("opd_teacher_load",) if settings.opd_type == "megatron" else served
    if len(named) != 1 or named[0] not in fitting:
        way_out = (
            "--opd-teacher-load" if settings.opd_type == "megatron" else "--opd-teacher-url or --teacher-hf-checkpoint"
        )
        yield report.error(
            " ".join(["opd_type", *(named or fitting)]),
            f"this type of teacher needs one of {', '.join(fitting)}" + (" and nothing else" if named else ""),
            f"{way_out}, alone",
        )


@rule
def teachers_read_text(config: RunConfig, report: Reporter) -> Findings:
    """Teachers that are engines are asked about tokens alone."""
    settings = config.distillation
    if settings.use_opd and settings.opd_type == "sglang" and config.media.multimodal_keys:
        yield report.error(
            "multimodal_keys opd_type",
            "teachers that are engines read text alone, and would score answers without what they are about",
            "--opd-type megatron, or prompts without media",
        )
