"""What Relax calls its metrics, and under which name they are here, or why they are not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RelaxName:
    """A metric of Relax.

    Attributes:
        name: Its name there; `{...}` stands for any name.
        here: Metrics, as `definitions.py` has them, that say the same; none where there is none.
        note: What differs, or why there is none.
    """

    name: str
    here: tuple[str, ...]
    note: str = ""


def _kept(*names: str) -> tuple[RelaxName, ...]:
    return tuple(RelaxName(name, (name,)) for name in names)


RELAX: tuple[RelaxName, ...] = (
    *_kept("rollout/raw_reward", "rollout/rewards", "rollout/advantages", "rollout/returns", "rollout/log_probs"),
    *_kept("rollout/ref_log_probs"),
    RelaxName("rollout/rollout_log_probs", ("rollout/rollout_log_probs",), "mean over tokens, not over samples"),
    RelaxName(
        "rollout/response_len/{mean,median,max,min}",
        tuple(f"rollout/response_len/{which}" for which in ("mean", "median", "max", "min")),
        "of all response tokens, those of tools and environments too",
    ),
    *_kept("rollout/truncated_ratio", "rollout/repetition_frac"),
    RelaxName("rollout/passrate/pass@k", ("rollout/passrate/pass@{k}",), "always, `--log-passrate` is not needed"),
    RelaxName("rollout/zero_std/count_{reward}", ("rollout/zero_std/count_{reward}",), "rewards are not rounded"),
    RelaxName("zero_std ratios", ("rollout/zero_std_ratio",)),
    RelaxName(
        "rollout/stop_reason/{reason}/{count,ratio}",
        ("rollout/stop_reason/{status}/count", "rollout/stop_reason/{status}/ratio"),
        "by the sample's status",
    ),
    RelaxName(
        "rollout/num_turn/*",
        tuple(f"rollout/num_turn/{which}" for which in ("mean", "min", "max", "p{percent}")),
        "of environments with turns alone",
    ),
    RelaxName("rollout/image_count/*", ("rollout/image_count/mean", "rollout/image_count/max")),
    RelaxName("rollout/multimodal_token_count/*", (), "in the recorded samples, as part of the prompt's length"),
    *_kept("rollout/staleness/avg", "rollout/staleness/max", "rollout/staleness/min"),
    RelaxName(
        "rollout/spec_accept_rate, spec_accept_length, spec/*", (), "engines that speculate say so at their `/metrics`"
    ),
    *_kept("rollout/prefix_cache_hit_rate", "rollout/avg_cached_tokens_per_sample"),
    *_kept("rollout/rloo/baseline_mean", "rollout/rloo/adv_abs_mean", "rollout/rloo/no_signal_frac"),
    *_kept("rollout/rloo/empty_response_frac", "rollout/rloo/zero_adv_group_frac"),
    RelaxName("rollout/rloo/dropped_group_frac", (), "groups are whole, or left out whole"),
    RelaxName("rollout/reinforce_pp_*", ("rollout/returns", "rollout/advantages"), "as for all algorithms"),
    RelaxName(
        "rollout/{key of the reward}/{mean,...}", ("rollout/{part}",), "the mean; single ones are in the samples"
    ),
    RelaxName("rollout/error_cat/{category}", (), "`relax rollouts RUN -w metadata~...` counts categories"),
    RelaxName("dynamic filter drop counts", ("rollout/groups/filtered/{reason}",)),
    RelaxName("rollout/agentic_kv/*", (), "agents share the engines' prefix cache, `rollout/prefix_cache_hit_rate`"),
    *_kept("eval/{dataset}", "eval/{dataset}-truncated_ratio", "eval/{dataset}-pass@{k}"),
    RelaxName("eval/{dataset}/response_len/*", ("eval/{dataset}/response_len/{which}",)),
    *_kept("train/loss", "train/pg_loss", "train/entropy_loss", "train/pg_clipfrac", "train/ppo_kl", "train/kl_loss"),
    RelaxName("train/tis*", tuple(f"train/tis{tail}" for tail in ("", "_abs", "_clipfrac", "_masked", "_ess"))),
    *_kept("train/ois", "train/mismatch_kl", "train/mismatch_k3_kl", "train/train_rollout_logprob_abs_diff"),
    RelaxName("train/train_rollout_prob_abs_diff", ("train/train_rollout_prob_abs_diff",)),
    *_kept("train/opsm_clipfrac"),
    RelaxName("train/value_loss, value_clipfrac", ("critic/value_loss", "critic/value_clipfrac"), "a role"),
    *_kept("train/grad_norm"),
    RelaxName("train/lr-pg_{i}", ("train/lr",), "all parameters have one rate"),
    RelaxName(
        "M2PO scalars",
        ("train/ppo_kl_m2_before", "train/ppo_kl_m2_after", "train/m2po_eps_low", "train/m2po_eps_high"),
    ),
    RelaxName("train/dpo/*", ("train/dpo_margin", "train/dpo_accuracy")),
    RelaxName(
        "perf/{timer}_time",
        ("perf/{phase}_time",),
        "`rollout`, `actor_train`, `log_probs`, `ref_log_probs`, `update_weights`, `save_model`, ...; there is no "
        "`sleep` and `wake_up` in it: engines give memory back between the actor's steps",
    ),
    *_kept("perf/rollout_time", "perf/actor_train_time", "perf/step_time", "perf/wait_time", "perf/wait_time_ratio"),
    *_kept("perf/actor_train_tflops", "perf/log_probs_tflops", "perf/ref_log_probs_tflops", "perf/device_peak_tflops"),
    *_kept("perf/mfu/actor_train", "perf/mfu/actor_infer", "perf/mfu/ref_infer"),
    *_kept(
        "perf/actor_train_tok_per_s", "perf/actor_train_tokens", "perf/step_token_per_s", "perf/step_resp_token_per_s"
    ),
    RelaxName("perf/tokens_per_gpu_per_sec", ("perf/tokens_per_gpu_per_sec",), "trained tokens, all devices"),
    *_kept("perf/longest_sample_tokens_per_sec"),
    RelaxName("perf_detail/rollout/*", (), "`relax trace` has every group's and every sample's times"),
    RelaxName("data packing metrics", (), "micro-batches are packed to a budget of tokens, without padding"),
    RelaxName("rollout/step, train/step, eval/step", (), "`step` of the line, one axis for all"),
)
