"""Sampling parameters of a request: parsing and bounds.

Field names and defaults are SGLang's. An unknown field, a wrong type or a value out of bounds is an
error that names the field, the value and the bound.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relax_engine.backends.engines.local.errors import BadRequestError

MAX_SEED = 2**63 - 1
MAX_SAMPLES = 4096
GREEDY_BELOW = 1e-6


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one response. `top_k` -1 and `top_p` 1 mean off; a `temperature` below
    `GREEDY_BELOW` means greedy."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    sampling_seed: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False

    @property
    def greedy(self) -> bool:
        """True when the most likely token is taken; its log-prob is that of temperature 1."""
        return self.temperature < GREEDY_BELOW

    @property
    def truncates(self) -> bool:
        """True when top-k, top-p or min-p removes tokens."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)


_FIELDS = {field.name for field in dataclasses.fields(SamplingParams)}
_BOOLEANS = ("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim")
_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0, 0.0, None),
    "presence_penalty": (0, 0.0, None),
    "repetition_penalty": (1, 1.0, None),
    "json_schema": (None,),
    "regex": (None,),
    "ebnf": (None,),
    "structural_tag": (None,),
    "stop_regex": (None,),
    "logit_bias": (None,),
    "custom_params": (None,),
    "stream_interval": (None,),
}


def _number(values: Mapping[str, Any], name: str, default: float, low: float, high: float, bound: str) -> float:
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadRequestError(f"sampling_params.{name} must be a number {bound}, got {value!r}")
    if not low <= value <= high:
        raise BadRequestError(f"sampling_params.{name} must be {bound}, got {value!r}")
    return float(value)


def _integer(values: Mapping[str, Any], name: str, default: int, low: int, high: int, bound: str) -> int:
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadRequestError(f"sampling_params.{name} must be an integer {bound}, got {value!r}")
    return value


def parse_sampling_params(values: Any, *, vocab_size: int) -> SamplingParams:
    """Check one `sampling_params` object.

    Raises:
        BadRequestError: naming the field, its value and the bound.
    """
    if values is None:
        values = {}
    if not isinstance(values, Mapping):
        raise BadRequestError(f"sampling_params must be an object, got {type(values).__name__}")
    for name in values:
        if name in _NO_EFFECT:
            if values[name] not in _NO_EFFECT[name]:
                raise BadRequestError(f"sampling_params.{name}={values[name]!r} is not supported by this engine")
        elif name not in _FIELDS:
            raise BadRequestError(f"sampling_params.{name} is not a known field; known: {', '.join(sorted(_FIELDS))}")
    # A null means the default, as a client that serialises its own defaults sends it.
    values = {name: value for name, value in values.items() if value is not None}
    flags = {}
    for name in _BOOLEANS:
        flags[name] = values.get(name, SamplingParams.__dataclass_fields__[name].default)
        if not isinstance(flags[name], bool):
            raise BadRequestError(f"sampling_params.{name} must be true or false, got {flags[name]!r}")
    top_p = _number(values, "top_p", 1.0, 0.0, 1.0, "in (0, 1]")
    if top_p == 0.0:
        raise BadRequestError("sampling_params.top_p must be in (0, 1], got 0.0")
    top_k = values.get("top_k", -1)
    if isinstance(top_k, bool) or not isinstance(top_k, int) or (top_k != -1 and top_k < 1):
        raise BadRequestError(f"sampling_params.top_k must be -1 (off) or an integer >= 1, got {top_k!r}")
    limit = _integer(values, "max_new_tokens", 128, 0, 2**31 - 1, ">= 0")
    seed = values.get("sampling_seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED):
        raise BadRequestError(f"sampling_params.sampling_seed must be an integer in [0, 2**63), got {seed!r}")
    return SamplingParams(
        n=_integer(values, "n", 1, 1, MAX_SAMPLES, f"in [1, {MAX_SAMPLES}]"),
        temperature=_number(values, "temperature", 1.0, 0.0, 1e6, ">= 0"),
        top_p=top_p,
        top_k=-1 if top_k >= vocab_size else top_k,
        min_p=_number(values, "min_p", 0.0, 0.0, 1.0, "in [0, 1]"),
        max_new_tokens=limit,
        min_new_tokens=_integer(values, "min_new_tokens", 0, 0, limit, f"in [0, max_new_tokens={limit}]"),
        stop=_stop_strings(values.get("stop")),
        stop_token_ids=_stop_ids(values.get("stop_token_ids"), vocab_size),
        sampling_seed=seed,
        **flags,
    )


def _stop_strings(value: Any) -> tuple[str, ...]:
    items = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise BadRequestError(f"sampling_params.stop must be a non-empty string or a list of them, got {value!r}")
    return tuple(items)


def _stop_ids(value: Any, vocab_size: int) -> tuple[int, ...]:
    items = [] if value is None else value
    if not isinstance(items, list) or not all(type(item) is int and 0 <= item < vocab_size for item in items):
        raise BadRequestError(
            f"sampling_params.stop_token_ids must be a list of token ids in [0, {vocab_size}), got {value!r}"
        )
    return tuple(sorted(set(items)))
