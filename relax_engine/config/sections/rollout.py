"""How responses are sampled, and how far sampling may run ahead of training."""

from __future__ import annotations

from typing import Literal

from relax_engine.config.sections.base import IntList, JsonObject, Section, StrList, flag, group


class Rollout(Section):
    """Sampling, engines, admission and the sample stream."""

    rollout_temperature: float = flag(1.0, ge=0)
    """Sampling temperature; log-probs are those of the distribution at this temperature."""

    rollout_top_p: float = flag(1.0, gt=0, le=1)
    """Nucleus sampling: smallest set of tokens with at least this probability."""

    rollout_top_k: int = flag(-1, ge=-1)
    """Sample among the k likeliest tokens; -1 for all."""

    rollout_stop: StrList = group(list)
    """Strings that end a response."""

    rollout_stop_token_ids: IntList = group(list)
    """Token ids that end a response, besides the model's own."""

    rollout_max_context_len: int | None = flag(None, ge=2, unit="tokens")
    """Longest prompt and response together. Default: prompt limit plus response limit where both are known."""

    rollout_max_prompt_len: int | None = flag(None, ge=1, unit="tokens")
    """Longest prompt; longer ones are an error that names the row. Default: context limit minus one."""

    rollout_max_response_len: int = flag(1024, ge=1, unit="tokens")
    """Longest response; a response cut here counts as truncated."""

    rollout_seed: int = flag(42, ge=0)
    """Seed of prompt order and of sampling."""

    max_staleness: int = flag(0, ge=0, unit="weight versions")
    """A sample may be trained at most this many weight versions after the one that generated its first token;
    0 is on-policy. Colocate is always 0, but with `--partial-rollout`."""

    over_sampling_batch_size: int | None = flag(None, ge=1, unit="prompts")
    """Prompts under way for one rollout; it is full when `--rollout-batch-size` of them are finished and kept.
    Default: `--rollout-batch-size`."""

    dynamic_sampling_filter_path: str | None = None
    """Function `(args, samples) -> bool or FilterOutput(keep, reason)` that says whether a scored group is trained on;
    groups left out are replaced. Built in: `relax_engine.rollout.filters.check_reward_nonzero_std`."""

    dynamic_sampling_max_attempts: int = flag(10, ge=1)
    """A filter that leaves out this many times `--rollout-batch-size` groups for one rollout ends the run."""

    partial_rollout: bool = False
    """Responses cut off by new weights, or because a rollout is full, are continued behind their last token; without
    it, those that new weights meet go on in the engine, and those of a full rollout begin again."""

    partial_rollout_max_aborted_count: int | None = flag(None, ge=1)
    """A group with a response that was cut off this often is not cut off again. Default: no limit."""

    mask_offpolicy_in_partial_rollout: bool = False
    """Keep the tokens of a continued group that older weights sampled than its newest out of the loss."""

    buffer_filter_path: str | None = None
    """Function `(args, rollout_id, buffer, num) -> groups` that chooses, and removes from the list `buffer`, the
    waiting groups that go on. Default: the oldest."""

    rollout_function_path: str | None = None
    """Function `(args, rollout_id, data_buffer, data_system_client, evaluation=False)` that makes whole rollouts in
    place of the built-in sampling, see `relax_engine.rollout.custom_rollout`."""

    rollout_sample_filter_path: str | None = None
    """Function `(args, groups)` that may set `remove_sample` on samples, which takes them out of the loss."""

    rollout_all_samples_process_path: str | None = None
    """Function `(args, groups, data_source)` that sees every scored group of a rollout, those left out too."""

    rollout_data_postprocess_path: str | None = None
    """Function `(args, rollout_data)` that may change advantages, returns and loss weights before they are used."""

    custom_rollout_log_function_path: str | None = None
    """Function `(rollout_id, args, samples, extra_metrics, time) -> bool`; True leaves out the built-in metrics."""

    stream_max_bytes: int = flag(2 << 30, ge=1, unit="bytes")
    """Bytes that the sample stream holds before producers wait."""

    stream_max_rows: int | None = flag(None, ge=1, unit="samples")
    """Samples that the stream holds before producers wait.
    Default: `(max_staleness + 1) * rollout_batch_size * n_samples_per_prompt`, and eight times that with agents, whose
    sessions may have several contexts."""

    rollout_engine: Literal["local", "sglang"] = "local"
    """Inference engine: `local` is the embedded one, `sglang` launches the SGLang server; both speak one API."""

    sglang_python: str | None = None
    """Interpreter of the environment that has SGLang, on every machine with engines. By default that of
    `.venv-sglang` in the checkout, where `make sglang-cpu` and `make sglang-gpu` build it."""

    rollout_engine_init_timeout: float = flag(3600.0, gt=0, unit="seconds")
    """Longest start of an engine until it answers `/health`."""

    rollout_http_timeout: float = flag(120.0, gt=0, unit="seconds")
    """Longest answer to one engine request; generation that takes longer is an error naming the engine."""

    sglang_server_concurrency: int = flag(512, ge=1, unit="requests")
    """Requests in flight per engine."""

    sglang_router_policy: Literal["least_load", "sticky", "cache_aware"] = "least_load"
    """Which engine gets a request: the one with the fewest samples under way, the one that had the group's earlier
    requests, or the one that was given the longest beginning of its prompt; the last two while it is not much busier
    than the others."""

    sglang_args: JsonObject = group(dict)
    """Server arguments passed on to every engine; `--sglang-NAME VALUE` adds one entry."""

    router_args: JsonObject = group(dict)
    """Router arguments passed on; `--router-NAME VALUE` adds one entry."""
