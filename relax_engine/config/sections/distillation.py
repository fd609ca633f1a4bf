"""Learning from a teacher while sampling from the student."""

from __future__ import annotations

from typing import Literal

from relax_engine.config.sections.base import JsonObject, Section, StrList, flag, group


class Distillation(Section):
    """On-policy distillation: where teachers are, and how their log-probs enter advantage or loss."""

    use_opd: bool = False
    """On-policy distillation: pull the student towards a teacher on the responses that the student samples."""

    opd_type: Literal["sglang", "megatron"] = "sglang"
    """Who computes the teacher's log-probs: inference engines (`sglang`, any server of that API), or the training
    backend (`megatron`), in the actor, or in a role of its own in fully-async mode."""

    opd_kl_coef: float = flag(1.0, ge=0)
    """Advantage mode: coefficient of the divergence that is taken off every token's advantage."""

    opd_loss_coef: float = flag(0.0, ge=0)
    """Loss mode, where above 0: coefficient of the divergence in the loss; advantages stay as they are."""

    opd_only_reward: bool = False
    """Leave out the reward: the advantage is the teacher's term alone."""

    opd_kl_type: Literal["reverse_kl", "forward_kl", "low_var_kl", "jsd"] = "reverse_kl"
    """Divergence. From the sampled tokens `reverse_kl` and `low_var_kl` can be estimated; `forward_kl` and `jsd` need
    `--opd-log-prob-top-k`."""

    opd_log_prob_top_k: int = flag(0, ge=0, unit="tokens")
    """Compare student and teacher on the teacher's so many likeliest tokens; 0 for the sampled token only."""

    opd_norm_mode: Literal["tail", "norm", "trunc"] = "tail"
    """What becomes of the other tokens beside the likeliest: one more token with the remaining probability (`tail`),
    nothing, with probabilities rescaled to 1 (`norm`), or nothing (`trunc`)."""

    opd_jsd_alpha: float = flag(0.5, gt=0, lt=1)
    """Share of the teacher in the mixture of `jsd`."""

    opd_log_prob_min_clamp: float | None = flag(None, lt=0, unit="nats")
    """Raise log-probs of student and teacher below this to it. Default: off."""

    opd_per_token_clip: float | None = flag(None, gt=0, unit="nats")
    """Largest divergence of one token. Default: no limit."""

    opd_is_clip: float | None = flag(None, gt=0)
    """Loss mode: weight the divergence of a token by the ratio of the current to the old policy, at most this.
    Default: no weight."""

    opd_teacher_url: StrList = group(list)
    """Engines that serve the teacher, `http://host:port`; several share the work."""

    opd_teacher_routes: JsonObject = group(dict)
    """Several teachers, as JSON from the value of `--opd-teacher-key` in a sample's metadata to the teacher's URL, or a
    list of them."""

    opd_teacher_key: str = "data_source"
    """Key of the metadata that names a sample's teacher in `--opd-teacher-routes`."""

    teacher_hf_checkpoint: str | None = None
    """Hugging Face directory of a teacher that this run serves itself, on the devices of `teacher` in `--resource`."""

    opd_teacher_load: str | None = None
    """Weights of the teacher for `--opd-type megatron`: a directory as for `--ref-load`, of the student's
    architecture."""

    opd_teacher_timeout_s: float = flag(30.0, gt=0, unit="seconds")
    """Deadline of one request to a teacher's engine; then another engine of that teacher is asked."""
