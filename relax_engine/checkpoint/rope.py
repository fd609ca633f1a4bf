"""Rotary position embeddings as a Hugging Face `config.json` describes them.

What lives here: `RopeSpec`, the kinds of scaling, and reading both from either spelling. What does not: frequencies and
rotations, which are tensors (`relax_engine.backends.rotary`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from relax_engine.checkpoint.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are divided by `factor` (arXiv 2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """NTK-aware scaling that begins behind `max_positions`; up to there, where it is supported, it changes nothing."""

    max_positions: int


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's: wavelengths above `original / low_freq_factor` are stretched by `factor`, those below
    `original / high_freq_factor` kept, those between interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): dimensions that turn less than `beta_slow` times in `original` positions are stretched
    by `factor`, those that turn more than `beta_fast` times kept, those between interpolated, the ends of the ramp
    rounded outwards where `truncate`. Rotated vectors are `attention_factor` times as long."""

    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True


Scaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding (RoFormer, arXiv 2104.09864).

    `theta` is the base period, `scaling` what rescales the frequencies. The first `fraction` of a head's dimensions is
    rotated. A pair is two neighbours where `adjacent`, else dimension i of the first half and i of the second.
    """

    theta: float
    scaling: Scaling | None = None
    fraction: float = 1.0
    adjacent: bool = False

    def rotated(self, dim: int) -> int:
        """How many of `dim` dimensions are rotated."""
        return int(dim * self.fraction)

    @property
    def max_positions(self) -> int | None:
        """Positions for which the frequencies hold; None: all."""
        return self.scaling.max_positions if isinstance(self.scaling, DynamicScaling) else None


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The RoPE parameters of either spelling: `rope_theta` + `rope_scaling`, or transformers 5's `rope_parameters`."""
    parameters: dict[str, Any] = dict(config.get("rope_scaling") or {})
    parameters.update(config.get("rope_parameters") or {})
    parameters["rope_theta"] = float(parameters.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    parameters["rope_type"] = "default" if kind == "mrope" else kind  # three positions, with unscaled frequencies
    return parameters


def read_rope(name: str, config: Mapping[str, Any], *, fraction: float = 1.0, adjacent: bool = False) -> RopeSpec:
    """The RoPE of architecture `name`, whose heads are rotated by `fraction` where the configuration does not say.

    Raises:
        UnsupportedModelError: a kind of scaling that is not known, or one whose parameters do not fit together.
    """
    parameters = rope_parameters(config)
    given = parameters.get("partial_rotary_factor") or config.get("partial_rotary_factor") or fraction
    kind = parameters["rope_type"]
    if kind != "default" and kind not in _READERS:
        known = ", ".join(repr(each) for each in ("default", *_READERS))
        raise UnsupportedModelError(
            f"{name}: RoPE scaling of type {kind!r} is not supported (supported: {known}); "
            "remove rope_scaling from config.json to train within the unscaled context"
        )
    if not 0.0 < float(given) <= 1.0:
        raise UnsupportedModelError(f"{name}: partial_rotary_factor must be in (0, 1], got {given}")
    scaling = None if kind == "default" else _READERS[kind](parameters, config)
    if isinstance(scaling, LinearScaling | Llama3Scaling | YarnScaling) and scaling.factor < 1.0:
        raise UnsupportedModelError(f"{name}: RoPE scaling by {scaling.factor}, which must be at least 1")
    return RopeSpec(parameters["rope_theta"], scaling, float(given), adjacent)


def mscale(factor: float, weight: float) -> float:
    """YaRN's temperature for a stretching by `factor`: `0.1 weight ln(factor) + 1`."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _linear(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> LinearScaling:
    return LinearScaling(float(parameters["factor"]))


def _dynamic(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> DynamicScaling:
    return DynamicScaling(int(config["max_position_embeddings"]))


def _llama3(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> Llama3Scaling:
    return Llama3Scaling(
        float(parameters["factor"]),
        float(parameters["low_freq_factor"]),
        float(parameters["high_freq_factor"]),
        _original(parameters, config),
    )


def _yarn(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> YarnScaling:
    original = _original(parameters, config)
    factor = float(parameters.get("factor") or config["max_position_embeddings"] / original)
    own, all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    attention = parameters.get("attention_factor")
    if attention is None:
        attention = mscale(factor, own) / mscale(factor, all_dim) if own and all_dim else mscale(factor, 1.0)
    return YarnScaling(
        factor,
        original,
        float(parameters.get("beta_fast") or 32.0),
        float(parameters.get("beta_slow") or 1.0),
        float(attention),
        bool(parameters.get("truncate", True)),
    )


def _original(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Positions before stretching."""
    return int(parameters.get("original_max_position_embeddings") or config["max_position_embeddings"])


_READERS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Scaling]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
}
