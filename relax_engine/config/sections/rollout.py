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
    0 is on-policy. Colocate is always 0."""

    stream_max_bytes: int = flag(2 << 30, ge=1, unit="bytes")
    """Bytes that the sample stream holds before producers wait."""

    stream_max_rows: int | None = flag(None, ge=1, unit="samples")
    """Samples that the stream holds before producers wait.
    Default: `(max_staleness + 1) * rollout_batch_size * n_samples_per_prompt`."""

    rollout_engine: Literal["local", "sglang"] = "local"
    """Inference engine: `local` is the embedded one, `sglang` launches the SGLang server; both speak one API."""

    rollout_engine_init_timeout: float = flag(3600.0, gt=0, unit="seconds")
    """Longest start of an engine until it answers `/health`."""

    rollout_http_timeout: float = flag(120.0, gt=0, unit="seconds")
    """Longest answer to one engine request; generation that takes longer is an error naming the engine."""

    sglang_server_concurrency: int = flag(512, ge=1, unit="requests")
    """Requests in flight per engine."""

    sglang_args: JsonObject = group(dict)
    """Server arguments passed on to every engine; `--sglang-NAME VALUE` adds one entry."""

    router_args: JsonObject = group(dict)
    """Router arguments passed on; `--router-NAME VALUE` adds one entry."""
