"""Sampling parameters of a run, and the seed of every sample.

The seed depends on (run seed, sample index) alone, so a sample's randomness does not depend on
which engine serves it, what runs beside it, or how often the run was resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """What every request of a rollout or an evaluation asks for."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int = 1024
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    seed: int = 42
    max_context_tokens: int | None = None
    routed_experts: bool = False
    """Whether the experts that tokens were sent to are asked for."""

    @classmethod
    def from_config(cls, args: Any) -> SamplingSettings:
        """Sampling of the rollout, from the flat configuration."""
        return cls(
            temperature=args.rollout_temperature,
            top_p=args.rollout_top_p,
            top_k=args.rollout_top_k,
            max_new_tokens=args.rollout_max_response_len,
            stop=tuple(args.rollout_stop),
            stop_token_ids=tuple(args.rollout_stop_token_ids),
            seed=args.rollout_seed,
            max_context_tokens=args.rollout_max_context_len,
            routed_experts=args.use_rollout_routing_replay,
        )

    @classmethod
    def for_evaluation(cls, args: Any) -> SamplingSettings:
        """Sampling of evaluations: the `eval_*` flags, and a seed of their own."""
        return replace(
            cls.from_config(args),
            temperature=args.eval_temperature,
            top_p=args.eval_top_p,
            top_k=args.eval_top_k,
            max_new_tokens=args.eval_max_response_len,
            seed=args.rollout_seed + 1,
            routed_experts=False,
        )

    def request(self, sample_index: int, prompt_tokens: int, *, generated: int = 0) -> dict[str, Any]:
        """`sampling_params` of one request; `generated` response tokens are already there."""
        limit = self.max_new_tokens
        if self.max_context_tokens is not None:
            limit = max(1, min(limit, self.max_context_tokens - prompt_tokens))
        params: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "max_new_tokens": limit - generated,
            "sampling_seed": sample_seed(self.seed, sample_index),
        }
        if self.stop:
            params["stop"] = list(self.stop)
        if self.stop_token_ids:
            params["stop_token_ids"] = list(self.stop_token_ids)
        return params


def sample_seed(seed: int, sample_index: int) -> int:
    """A 31-bit seed for one sample, well mixed so that neighbouring samples are unrelated."""
    digest = hashlib.blake2b(f"{seed}:{sample_index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFFFFFF
