"""Rules about partial rollout, over-sampling, filters and determinism."""

from __future__ import annotations

from pathlib import Path

from relax_engine.config.roles import compares_with_sampler, generates_ahead, old_policy_is_current
from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig


@rule
def continued_responses_may_be_trained(config: RunConfig, report: Reporter) -> Findings:
    """A response that goes on under new weights was begun by older ones."""
    rollout = config.rollout
    if rollout.partial_rollout and rollout.max_staleness == 0 and not rollout.mask_offpolicy_in_partial_rollout:
        yield report.error(
            "partial_rollout max_staleness",
            "a response that is continued under new weights was begun by older ones, and none of these may be trained",
            "--max-staleness 1 or more, or --mask-offpolicy-in-partial-rollout to train only what the newest sampled",
        )


@rule
def partial_options_need_partial_rollout(config: RunConfig, report: Reporter) -> Findings:
    """Options of partial rollout need it."""
    rollout = config.rollout
    names = ("partial_rollout_max_aborted_count", "mask_offpolicy_in_partial_rollout")
    given = [name for name in names if getattr(rollout, name)]
    if given and not rollout.partial_rollout:
        yield report.warning(
            " ".join([*given, "partial_rollout"]), "without effect: no response is continued", "add --partial-rollout"
        )


@rule
def partial_rollout_cuts_something(config: RunConfig, report: Reporter) -> Findings:
    """On shared devices only over-sampling leaves responses to continue."""
    surplus = config.flat.over_sampling_batch_size > config.flat.rollout_batch_size
    if config.rollout.partial_rollout and config.mode == "colocate" and not surplus:
        yield report.note(
            "partial_rollout colocate over_sampling_batch_size rollout_batch_size",
            "every group that is started is waited for, so nothing is cut off",
            "--over-sampling-batch-size larger than --rollout-batch-size",
        )


@rule
def over_sampling_covers_a_rollout(config: RunConfig, report: Reporter) -> Findings:
    """At least as many prompts are under way as a rollout has."""
    started, needed = config.flat.over_sampling_batch_size, config.flat.rollout_batch_size
    names = "over_sampling_batch_size rollout_batch_size"
    if started < needed:
        yield report.error(names, "fewer prompts than a rollout needs", f"--over-sampling-batch-size {needed} or more")
    elif started > needed and generates_ahead(config):
        yield report.note(
            f"{names} max_staleness",
            "without effect: groups of later rollouts run ahead within --max-staleness, and overtake slow ones",
        )


@rule
def repeatable(config: RunConfig, report: Reporter) -> Findings:
    """What makes the result depend on timing, and --deterministic."""
    if not config.flat.deterministic:
        return
    if config.flat.over_sampling_batch_size > config.flat.rollout_batch_size or config.rollout.partial_rollout:
        yield report.error(
            "deterministic over_sampling_batch_size rollout_batch_size partial_rollout",
            "which responses are cut off, and where, depends on timing",
            "leave --over-sampling-batch-size and --partial-rollout out",
        )
    if config.rollout.rollout_engine == "sglang":
        yield report.error(
            "deterministic rollout_engine",
            "SGLang's server draws all samples from one stream, in the order in which they happen to be computed",
            "--rollout-engine local, whose samples are a function of their seeds",
        )


@rule
def filter_has_a_spread(config: RunConfig, report: Reporter) -> Findings:
    """A filter needs something to compare."""
    path, size = config.rollout.dynamic_sampling_filter_path, config.data.n_samples_per_prompt
    if path is not None and path.endswith("check_reward_nonzero_std") and size == 1:
        yield report.error(
            "dynamic_sampling_filter_path n_samples_per_prompt",
            "a group of one sample has no spread, so every group would be left out",
            "--n-samples-per-prompt 2 or more, or no filter",
        )


@rule
def replayed_routing_is_known(config: RunConfig, report: Reporter) -> Findings:
    """Engines say which experts they chose, of a model that has some, to whoever makes the samples."""
    if not config.algorithm.use_rollout_routing_replay:
        return
    if config.supervised:
        yield report.error("use_rollout_routing_replay loss_type", "there is no rollout", "leave out the replay")
    elif config.agentic.use_agentic_rollout:
        yield report.error(
            "use_rollout_routing_replay use_agentic_rollout",
            "the gateway of agents does not keep the experts that tokens were sent to",
            "leave one of them out, or --use-routing-replay for the experts of the trainer's own earlier pass",
        )
    elif not _has_experts(config):
        yield report.error(
            "use_rollout_routing_replay hf_checkpoint", "this model has no experts", "leave out the replay"
        )


@rule
def replayed_routing_was_recorded(config: RunConfig, report: Reporter) -> Findings:
    """The trainer can replay what it chose in an earlier pass over the rows."""
    objective = config.algorithm
    if not objective.use_routing_replay:
        return
    rollout = "--use-rollout-routing-replay for the rollout's experts"
    if config.supervised:
        yield report.error("use_routing_replay loss_type", "there are no old log-probs", "leave out the replay")
    elif not _has_experts(config):
        yield report.error("use_routing_replay hf_checkpoint", "this model has no experts", "leave out the replay")
    elif objective.use_rollout_routing_replay:
        yield report.note(
            "use_routing_replay use_rollout_routing_replay",
            "without effect: the rollout's experts are replayed in the pass for old log-probs and in training",
        )
    elif objective.use_rollout_logprobs or compares_with_sampler(config):
        yield report.error(
            "use_routing_replay use_rollout_logprobs advantage_estimator",
            "the old log-probs are the engine's, so the trainer makes no pass whose experts it could replay",
            f"{rollout}, or old log-probs of the trainer (--keep-old-actor)",
        )
    elif old_policy_is_current(config) and not objective.get_mismatch_metrics:
        yield report.warning(
            "use_routing_replay num_steps_per_rollout",
            "without effect: the training pass is the first over its rows, and chooses for itself",
            f"{rollout}, or leave it out",
        )


def _has_experts(config: RunConfig) -> bool:
    """Whether `config.json` speaks of experts; True where there is none to read, of which other rules speak."""
    path = Path(config.model.hf_checkpoint or "", "config.json")
    description = path.read_text(encoding="utf-8") if path.is_file() else "num_experts"
    return "num_experts" in description or "n_routed_experts" in description
