"""What an engine answers, and how calling one fails."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relax_engine.errors import RelaxError


class EngineCallError(RelaxError):
    """A call to an engine failed; the message names URL, endpoint and cause."""


class EngineRefusedError(EngineCallError):
    """The engine answered with an error status."""

    def __init__(self, url: str, endpoint: str, status: int, message: str) -> None:
        super().__init__(f"{url}{endpoint} answered {status}: {message}")
        self.status = status


class EngineUnreachableError(EngineCallError):
    """No connection, or it broke."""


class EngineDeadlineError(EngineCallError):
    """No answer in time."""


class EngineLaunchError(RelaxError):
    """The engine process ended or did not become healthy in time; the message ends with its log."""


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Output tokens `[start, end)` were sampled from the weights called `version`."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GenerateOutput:
    """One response.

    `output_ids` int32 `[n]`; `log_probs` float32 `[n]`, of the sampling distribution; `input_log_probs` float32
    of the prompt tokens from `logprob_start_len` on, without the first token of the sequence, which has none;
    `input_top_ids` int32 and `input_top_log_probs` float32 `[same, k]` of the likeliest tokens in their place;
    `prompt_tokens` 0 where it is not said: by SGLang, of a request that was aborted while it waited.
    """

    rid: str
    text: str
    output_ids: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    input_log_probs: NDArray[np.float32]
    input_top_ids: NDArray[np.int32]
    input_top_log_probs: NDArray[np.float32]
    finish_reason: Mapping[str, Any]
    weight_version: str
    weight_versions: tuple[VersionSpan, ...]
    prompt_tokens: int
    cached_tokens: int
    num_retractions: int
    e2e_latency: float
    routed_experts: NDArray[np.int16] | None = None
    """The experts that each token of prompt and response but the last was sent to, `[tokens - 1, layers * k]`."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GenerateOutput:
        """Read one answer of `/generate`."""
        meta = data["meta_info"]
        output = meta.get("output_token_logprobs") or []
        inputs = [entry[0] for entry in meta.get("input_token_logprobs") or [] if entry[0] is not None]
        top = [row for row in meta.get("input_top_logprobs") or [] if row]
        spans = meta.get("weight_versions") or []
        ids = np.array(data.get("output_ids") or [entry[1] for entry in output], dtype=np.int32)
        prompt_tokens = int(meta.get("prompt_tokens") or 0)
        return cls(
            rid=str(meta["id"]),
            text=str(data.get("text") or ""),
            output_ids=ids,
            log_probs=np.array([entry[0] for entry in output], dtype=np.float32),
            input_log_probs=np.array(inputs, dtype=np.float32),
            input_top_ids=np.array([[entry[1] for entry in row] for row in top], dtype=np.int32),
            input_top_log_probs=np.array([[entry[0] for entry in row] for row in top], dtype=np.float32),
            finish_reason=meta["finish_reason"],
            weight_version=str(meta["weight_version"]),
            weight_versions=tuple(VersionSpan(str(s["version"]), int(s["start"]), int(s["end"])) for s in spans),
            prompt_tokens=prompt_tokens,
            cached_tokens=int(meta.get("cached_tokens") or 0),
            num_retractions=int(meta.get("num_retractions") or 0),
            e2e_latency=float(meta.get("e2e_latency") or 0.0),
            routed_experts=_routed_experts(meta.get("routed_experts"), prompt_tokens + len(ids) - 1),
        )


def _routed_experts(text: str | None, tokens: int) -> NDArray[np.int16] | None:
    """SGLang's base64 of int32 numbers, `[tokens, layers, k]`."""
    if not text or tokens < 1:
        return None
    return np.frombuffer(base64.b64decode(text), "<i4").reshape(tokens, -1).astype(np.int16)
