"""Every metric: its name, its unit, what it means, and which way is better. The one place where that is said.

`python -m relax_engine.observe.definitions docs` writes `docs/metrics.md` (`make docs`).
"""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from relax_engine.observe.relax_names import RELAX


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, or with `{...}` in its name a family of them.

    Attributes:
        name: As in `metrics.jsonl`.
        unit: Of the value.
        meaning: One sentence.
        better: `higher`, `lower`, or nothing where neither is.
    """

    name: str
    unit: str
    meaning: str
    better: str = ""


METRICS: tuple[Metric, ...] = (
    Metric("rollout/raw_reward", "reward", "Mean reward of the partition's samples, before normalisation.", "higher"),
    Metric("rollout/passrate/pass@{k}", "share", "Chance that one of k samples of a prompt has reward 1.", "higher"),
    Metric("rollout/response_len/mean", "tokens", "Mean length of responses."),
    Metric("rollout/response_len/median", "tokens", "Median length of responses."),
    Metric("rollout/response_len/max", "tokens", "Longest response."),
    Metric("rollout/response_len/min", "tokens", "Shortest response."),
    Metric("rollout/rewards", "", "Mean reward of trained samples as training gets it, after normalisation."),
    Metric("rollout/advantages", "", "Mean over trained samples of each one's mean advantage of tokens in the loss."),
    Metric("rollout/returns", "reward", "The same of returns, where the algorithm has them."),
    Metric("rollout/values", "reward", "The same of a critic's values."),
    Metric("rollout/log_probs", "nats", "The same of log-probs under the old policy, where they were computed again."),
    Metric("rollout/ref_log_probs", "nats", "The same of log-probs under the reference."),
    Metric("rollout/repetition_frac", "share", "Long responses that zlib makes a tenth of at their end.", "lower"),
    Metric("rollout/prefix_cache_hit_rate", "share", "Prompt tokens that engines had in prefix caches.", "higher"),
    Metric("rollout/avg_cached_tokens_per_sample", "tokens", "The same as a number for each sample."),
    Metric("rollout/rloo/baseline_mean", "reward", "RLOO: mean of the leave-one-out baselines."),
    Metric("rollout/rloo/adv_abs_mean", "reward", "RLOO: mean size of advantages."),
    Metric("rollout/rloo/no_signal_frac", "share", "RLOO: tokens of samples whose advantage is 0.", "lower"),
    Metric("rollout/rloo/empty_response_frac", "share", "RLOO: samples without a response token.", "lower"),
    Metric("rollout/rloo/zero_adv_group_frac", "share", "RLOO: groups of which every advantage is 0.", "lower"),
    Metric("rollout/truncated_ratio", "share", "Responses that ended at the limit of length.", "lower"),
    Metric("rollout/stop_reason/{status}/count", "samples", "Samples whose generation ended this way."),
    Metric("rollout/stop_reason/{status}/ratio", "share", "The same as a share."),
    Metric("rollout/zero_std_ratio", "share", "Prompt groups whose samples all have one reward, and teach nothing."),
    Metric("rollout/zero_std/count_{reward}", "groups", "Those with this reward."),
    Metric("rollout/rollout_log_probs", "nats", "Mean log-prob of sampled tokens; its negative estimates entropy."),
    Metric("rollout/num_turn/mean", "turns", "Mean turns of conversations with an environment."),
    Metric("rollout/num_turn/min", "turns", "Fewest turns of one."),
    Metric("rollout/num_turn/max", "turns", "Most turns of one."),
    Metric("rollout/num_turn/p{percent}", "turns", "Percentile of them."),
    Metric("rollout/image_count/mean", "images", "Mean images of a sample."),
    Metric("rollout/image_count/max", "images", "Most images of one."),
    Metric("rollout/staleness/avg", "versions", "Mean lag of trained samples: version trained minus version sampled."),
    Metric("rollout/staleness/max", "versions", "Largest lag of a trained sample."),
    Metric("rollout/staleness/min", "versions", "Smallest lag of a trained sample."),
    Metric("rollout/staleness/count/{lag}", "samples", "Trained samples of this lag."),
    Metric("rollout/staleness/spanning_ratio", "share", "Trained samples that were sampled across a weight update."),
    Metric("rollout/groups/filtered/{reason}", "groups", "Groups that the dynamic filter left out."),
    Metric("rollout/groups/{what}", "groups", "Groups that were continued, cut off, begun again or given up."),
    Metric("rollout/groups/masked_tokens", "tokens", "Tokens of older weights taken out of the loss."),
    Metric("rollout/agents/{what}", "sessions", "Sessions of agents: started, by how they ended, tried again."),
    Metric("rollout/{part}", "", "Mean of an entry of rewards that are dictionaries, under the entry's name."),
    Metric("eval/{dataset}", "reward", "Mean reward on held-out prompts; accuracy where rewards are 0 or 1.", "higher"),
    Metric("eval/{dataset}-pass@{k}", "share", "Prompts of which one of k samples has reward 1.", "higher"),
    Metric("eval/{dataset}-truncated_ratio", "share", "Evaluated responses that ended at the limit.", "lower"),
    Metric("eval/{dataset}/response_len/{which}", "tokens", "Length of evaluated responses: mean, median, max, min."),
    Metric("train/loss", "", "Objective that the gradient is of."),
    Metric("train/pg_loss", "", "Policy-gradient part of the loss."),
    Metric("train/kl_loss", "nats", "KL to the reference in the loss, before its coefficient."),
    Metric("train/kl_reward", "nats", "KL to the reference that rewards are reduced by."),
    Metric("train/entropy_loss", "nats", "Entropy of the policy over trained tokens."),
    Metric("train/opd_reverse_kl", "nats", "Student minus teacher log-prob on the student's tokens.", "lower"),
    Metric("train/opd_loss", "nats", "Divergence from the teacher in the loss.", "lower"),
    Metric("train/pg_clipfrac", "share", "Trained tokens whose ratio was clipped."),
    Metric("train/ppo_kl", "nats", "Old minus current log-prob: how far the step moved from the old policy."),
    Metric("train/ois", "", "Mean ratio of current to old probability."),
    Metric("train/ppo_kl_m2_before", "nats²", "Second moment of the log-ratio before M2PO's masking."),
    Metric("train/ppo_kl_m2_after", "nats²", "The same after it."),
    Metric("train/m2po_eps_low", "", "M2PO's lower clipping bound, found from the batch."),
    Metric("train/m2po_eps_high", "", "M2PO's upper clipping bound, found from the batch."),
    Metric("train/ratio/max", "", "Largest ratio of current to old probability of a trained token."),
    Metric("train/tis", "", "Mean importance weight between trainer and engine, unbounded."),
    Metric("train/tis_abs", "", "Mean distance of that weight from 1.", "lower"),
    Metric("train/tis_clipfrac", "share", "Tokens whose weight was bounded."),
    Metric("train/tis_masked", "share", "Tokens that the correction took out of the loss."),
    Metric("train/tis_ess", "share", "Effective sample size of the weights as a share of the tokens.", "higher"),
    Metric("train/opsm_clipfrac", "share", "Tokens of sequences that off-policy sequence masking took out."),
    Metric("train/mismatch_kl", "nats", "Engine minus trainer log-prob, the k1 estimate of their KL.", "lower"),
    Metric("train/mismatch_k3_kl", "nats", "The k3 estimate of the same.", "lower"),
    Metric("train/train_rollout_logprob_abs_diff", "nats", "Mean distance of trainer and engine log-probs.", "lower"),
    Metric("train/train_rollout_logprob_abs_diff/max", "nats", "Largest distance of them.", "lower"),
    Metric("train/train_rollout_prob_abs_diff", "", "Mean distance of their probabilities.", "lower"),
    Metric(
        "train/routing_replay/changed",
        "share",
        "Replayed choices, of a layer for a token, that its router would have made otherwise.",
    ),
    Metric("train/rollout_logprob_gap", "nats", "Largest such distance under the weights that sampled.", "lower"),
    Metric("train/loss_tokens/sum", "tokens", "Tokens in the loss."),
    Metric("train/loss_weight", "", "Sum of token weights, scaled as the loss; 1 for a mean."),
    Metric("train/loss_weight/sum", "", "Sum of token weights."),
    Metric("train/tis_weight/sum", "", "Sum of importance weights."),
    Metric("train/tis_weight_square/sum", "", "Sum of their squares."),
    Metric("train/grad_norm", "", "Norm of the gradient before clipping."),
    Metric("train/lr", "", "Learning rate."),
    Metric("train/accuracy", "share", "Right classes of `seq_cls`.", "higher"),
    Metric("train/dpo_margin", "nats", "Mean margin between chosen and rejected answers.", "higher"),
    Metric("train/dpo_accuracy", "share", "Pairs whose chosen answer has the larger margin.", "higher"),
    Metric("train/{name}", "", "A sum or mean of an algorithm's or a user's own loss, under its name."),
    Metric("mismatch/kl", "nats", "Engine minus trainer log-prob over the whole partition.", "lower"),
    Metric("mismatch/k3_kl", "nats", "The k3 estimate of the same.", "lower"),
    Metric("mismatch/ess", "share", "Effective sample size of trainer-to-engine ratios.", "higher"),
    Metric("mismatch/beyond_2", "share", "Tokens that one side finds more than twice as likely as the other.", "lower"),
    Metric("mismatch/ratio/{quantile}", "", "Quantile of the ratio of trainer to engine probability."),
    Metric("by_source/{teacher}/{figure}", "", "Reward, accuracy and log-probs of the samples of one teacher."),
    Metric("critic/loss", "", "The critic's objective."),
    Metric("critic/value_loss", "reward²", "Squared error of values."),
    Metric("critic/value_clipfrac", "share", "Tokens whose value change was clipped."),
    Metric("critic/values", "reward", "Mean predicted value."),
    Metric("critic/returns", "reward", "Mean return that values learn."),
    Metric("critic/explained_variance", "share", "Variance of returns that values explain.", "higher"),
    Metric("critic/{name}", "", "Of the critic's step, as under `train/`."),
    Metric("perf/step_time", "s", "From the first wait for a partition to its end.", "lower"),
    Metric("perf/wait_time", "s", "Part of it in which the trainer waited for samples.", "lower"),
    Metric("perf/wait_time_ratio", "share", "The same as a share of the step.", "lower"),
    Metric("perf/rollout_time", "s", "From a partition's first group to its last."),
    Metric("perf/rollout_tokens_per_second", "tokens/s", "Response tokens of the partition over that time.", "higher"),
    Metric("perf/actor_train_time", "s", "Forward, backward and optimizer."),
    Metric("perf/actor_train_tok_per_s", "tokens/s", "Trained tokens, prompts included, over that time.", "higher"),
    Metric("perf/tokens_per_gpu_per_sec", "tokens/s", "Trained tokens over step time and all devices.", "higher"),
    Metric("perf/longest_sample_tokens_per_sec", "tokens/s", "Longest response over the rollout's time.", "higher"),
    Metric("perf/actor_train_tokens", "tokens", "Trained tokens, prompts included."),
    Metric("perf/step_token_per_s", "tokens/s", "The same over the time of the step.", "higher"),
    Metric("perf/step_resp_token_per_s", "tokens/s", "Trained response tokens over the time of the step.", "higher"),
    Metric("perf/actor_train_tflops", "10^12/s", "Model operations of training, a second and device.", "higher"),
    Metric("perf/log_probs_tflops", "10^12/s", "The same of passes for old log-probs in the actor.", "higher"),
    Metric("perf/ref_log_probs_tflops", "10^12/s", "The same of passes for the reference's in the actor.", "higher"),
    Metric("perf/device_peak_tflops", "10^12/s", "What a device can do at most, where that is known."),
    Metric("perf/mfu/actor_train", "share", "Model FLOPs utilization of training.", "higher"),
    Metric("perf/mfu/actor_infer", "share", "The same of passes for old log-probs.", "higher"),
    Metric("perf/mfu/ref_infer", "share", "The same of passes for the reference's.", "higher"),
    Metric("perf/{phase}_time", "s", "Time of the step in which this phase of the actor was under way."),
    Metric("perf/samples", "samples", "Samples that were trained."),
    Metric("weight_sync/seconds", "s", "From the pause of the engines to the commit.", "lower"),
    Metric("weight_sync/bytes", "bytes", "Weights that were sent, once."),
    Metric("weight_sync/payload_bytes", "bytes", "What went over the wire for them."),
    Metric("weight_sync/skipped_bytes", "bytes", "Weights that had not changed, and were not sent."),
    Metric("weight_sync/staging_bytes", "bytes", "Memory used for buckets."),
    Metric("weight_sync/buckets", "buckets", "Buckets that were sent."),
    Metric("weight_sync/gigabytes_per_second", "GB/s", "Bytes over seconds.", "higher"),
    Metric("weight_sync/quarantined", "receivers", "Receivers that failed.", "lower"),
    Metric("weight_sync/version", "version", "Version that receivers hold now."),
    Metric("weight_sync/logprob_max_abs_diff", "nats", "Largest engine-trainer distance after the sync.", "lower"),
    Metric("stream/produced", "samples", "Written so far: trained + filtered + dropped_stale + in_flight."),
    Metric("stream/trained", "samples", "Trained so far."),
    Metric("stream/filtered", "samples", "Left out by filters so far."),
    Metric("stream/dropped_stale", "samples", "Too old to train, so far.", "lower"),
    Metric("stream/in_flight", "samples", "Written and not yet trained."),
    Metric("stream/nbytes", "bytes", "Bytes held by the stream."),
    Metric("stream/partitions", "partitions", "Partitions that are open."),
    Metric("stream/duplicate_rows", "samples", "Rows that came twice and were taken once."),
    Metric("stream/lost_rows", "samples", "Rows lost with a storage unit, and asked for again."),
    Metric("stream/groups_admitted", "groups", "Groups admitted so far."),
    Metric("stream/groups_occupied", "groups", "Admission slots that are taken."),
    Metric("stream/group_budget", "groups", "Admission slots in all."),
    Metric("stream/weight_version", "version", "Version that the gate counts from."),
    Metric("observe/rollouts_dropped", "samples", "Samples that the recorder was too busy to take.", "lower"),
    Metric("observe/media_left_out", "files", "Images, audio and frames that there was no room to record."),
    Metric("observe/training_dropped", "samples", "Rows of training that it did not take.", "lower"),
)


@functools.cache
def definition(name: str) -> Metric | None:
    """What a metric is: its own definition, else that of the most specific family; None for a name that is not ours."""
    families = [metric for metric in METRICS if _pattern(metric.name).fullmatch(name)]
    return max(families, key=lambda metric: len(re.sub(r"{\w+}", "", metric.name)), default=None)


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(
        "".join(".+" if part.startswith("{") else re.escape(part) for part in re.split(r"(\{\w+\})", name))
    )


def render_markdown() -> str:
    """The text of `docs/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "Generated from `relax_engine/observe/definitions.py` by `make docs`; edit it there. `{...}` stands for any",
        "name. The run directory has them in `metrics.jsonl`, a line a step, and `eval.jsonl`, a line an evaluation;",
        "when the run has ended also in `metrics.parquet`, a row for each step and metric.",
        "",
        "| metric | unit | better | meaning |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| `{metric.name}` | {metric.unit} | {metric.better} | {metric.meaning} |" for metric in METRICS]
    lines += [
        "",
        "## Model FLOPs",
        "",
        "`perf/..._tflops` counts PaLM's `6 N + 12 L H Q T` operations a token (Chowdhery et al. 2022,",
        "arXiv:2204.02311, appendix B), a third of that for a forward pass: `N` weights that a token is multiplied",
        "with (of experts those it goes to, without the embedding), `L` layers, `H` heads of size `Q`, `T` the length",
        "of the sample. What is computed again in the backward pass does not count, nor do vision and audio encoders.",
        "`perf/mfu/...` is the share of the device's peak, from its data sheet (dense bfloat16, with `--bf16`) or",
        "`--device-peak-tflops`; where neither says it there is none.",
        "",
        "## Names of Relax",
        "",
        "Every metric that Relax logs, and what has become of it here.",
        "",
        "| in Relax | here | |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| `{old.name}` | {', '.join(f'`{new}`' for new in old.here) or 'not there'} | {old.note} |" for old in RELAX
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1], "metrics.md").write_text(render_markdown(), encoding="utf-8")
