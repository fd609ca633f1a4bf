"""Rules about batch sizes, token budgets and lengths."""

from __future__ import annotations

from relax_engine.config.roles import data_parallel_size
from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig


def _samples_per_rollout(config: RunConfig) -> int:
    return config.data.rollout_batch_size * config.data.n_samples_per_prompt


def _global_batch(config: RunConfig) -> int:
    return config.data.global_batch_size or _samples_per_rollout(config)


@rule
def rollout_divides_into_steps(config: RunConfig, report: Reporter) -> Findings:
    """A rollout is a whole number of optimizer steps."""
    samples, batch = _samples_per_rollout(config), _global_batch(config)
    if not config.supervised and samples % batch:
        yield report.error(
            "rollout_batch_size n_samples_per_prompt global_batch_size",
            f"a rollout has {samples} samples, which do not divide into optimizer steps of {batch}",
            f"--global-batch-size {samples} trains on-policy; any divisor of {samples} works",
        )


@rule
def steps_and_batch_agree(config: RunConfig, report: Reporter) -> Findings:
    """--num-steps-per-rollout and --global-batch-size say the same when both are given."""
    given = config.explicit()
    if not {"num_steps_per_rollout", "global_batch_size"} <= given.keys():
        return
    samples = _samples_per_rollout(config)
    if given["num_steps_per_rollout"] * given["global_batch_size"] != samples:
        yield report.error(
            "num_steps_per_rollout global_batch_size rollout_batch_size n_samples_per_prompt",
            f"steps times batch is not the {samples} samples of a rollout",
            "leave one of --num-steps-per-rollout and --global-batch-size out; it follows from the other",
        )


@rule
def batch_keeps_groups_whole(config: RunConfig, report: Reporter) -> Findings:
    """No prompt group is split over two optimizer steps."""
    batch, group = _global_batch(config), config.data.n_samples_per_prompt
    if not config.supervised and batch % group:
        yield report.error(
            "global_batch_size n_samples_per_prompt",
            f"a batch of {batch} would split a prompt group of {group}",
            f"use a multiple of {group}, such as {max(1, batch // group) * group}",
        )


@rule
def batch_divides_over_ranks(config: RunConfig, report: Reporter) -> Findings:
    """Every data-parallel rank gets the same number of samples."""
    batch, ranks = _global_batch(config), data_parallel_size(config)
    if batch % ranks:
        yield report.error(
            "global_batch_size resource",
            f"a batch of {batch} does not divide over {ranks} data-parallel ranks",
            f"use a multiple of {ranks}, or another number of actor devices",
        )


@rule
def rank_batch_divides_into_micro_batches(config: RunConfig, report: Reporter) -> Findings:
    """Without dynamic batches each rank's share is a whole number of micro-batches."""
    batch, ranks, micro = _global_batch(config), data_parallel_size(config), config.data.micro_batch_size
    if not config.data.use_dynamic_batch_size and batch % ranks == 0 and (batch // ranks) % micro:
        yield report.error(
            "global_batch_size micro_batch_size",
            f"each rank's {batch // ranks} samples do not divide into micro-batches of {micro}",
            "choose a divisor for --micro-batch-size, or pack by tokens with --max-tokens-per-gpu",
        )


@rule
def on_policy_batch(config: RunConfig, report: Reporter) -> Findings:
    """Several steps per rollout are off-policy from the second on."""
    samples, batch = _samples_per_rollout(config), _global_batch(config)
    if not config.supervised and batch < samples and samples % batch == 0:
        yield report.note(
            "global_batch_size rollout_batch_size n_samples_per_prompt",
            f"{samples // batch} optimizer steps per rollout; all but the first are off-policy",
            f"--global-batch-size {samples} for strictly on-policy training",
        )


@rule
def dynamic_batch_has_budget(config: RunConfig, report: Reporter) -> Findings:
    """Packing by tokens needs a token budget."""
    if config.data.use_dynamic_batch_size and config.data.max_tokens_per_gpu is None:
        yield report.error(
            "use_dynamic_batch_size max_tokens_per_gpu",
            "packing by tokens needs a budget",
            "--max-tokens-per-gpu N, at least the longest prompt and response together",
        )


@rule
def budget_holds_longest_sample(config: RunConfig, report: Reporter) -> Findings:
    """One sample of the longest length fits into a micro-batch."""
    context, split = config.rollout.rollout_max_context_len, config.parallelism.context_parallel_size
    if context is None:
        return
    for name in ("max_tokens_per_gpu", "log_probs_max_tokens_per_gpu"):
        budget = getattr(config.data, name)
        if budget is not None and budget * split < context:
            yield report.error(
                f"{name} context_parallel_size rollout_max_context_len",
                f"the longest sample has {context} tokens and does not fit into {budget} x {split}",
                f"--{name.replace('_', '-')} {-(-context // split)} or more",
            )
            return


@rule
def lengths_leave_room(config: RunConfig, report: Reporter) -> Findings:
    """The context holds a prompt and a response."""
    rollout = config.rollout
    context, prompt = rollout.rollout_max_context_len, rollout.rollout_max_prompt_len
    if context is None:
        return
    if prompt is not None and prompt >= context:
        yield report.error(
            "rollout_max_context_len rollout_max_prompt_len",
            "the longest prompt leaves no room for a response",
            f"--rollout-max-prompt-len {context - 1} or less",
        )
    elif prompt is not None and prompt + rollout.rollout_max_response_len > context:
        yield report.note(
            "rollout_max_context_len rollout_max_prompt_len rollout_max_response_len",
            "responses to the longest prompts are cut at the context limit before the response limit",
        )


@rule
def run_has_an_end(config: RunConfig, report: Reporter) -> Findings:
    """The number of rollouts is known."""
    rollouts, epochs = config.data.num_rollout, config.data.num_epoch
    if rollouts is None and epochs is None:
        yield report.error("num_rollout num_epoch", "how long to train is open", "--num-epoch 1, or --num-rollout N")
    elif rollouts is not None and epochs is not None:
        yield report.note("num_rollout num_epoch", "both are given; the smaller number of rollouts counts")
    start = config.checkpoint.start_rollout_id
    if start is not None and rollouts is not None and start >= rollouts:
        yield report.error(
            "start_rollout_id num_rollout", "the run would end before it starts", "a larger --num-rollout"
        )
