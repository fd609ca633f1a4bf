"""Reward shaping by response length, before rewards are normalised in their group.

What lives here: penalties as functions of lengths and rewards. What does not: scoring, normalisation (`rewards`), and a
user's own processing (`relax_engine.rollout.reward_stage`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapingSettings:
    """Shaping flags under their field names; the defaults shape nothing."""

    rollout_max_response_len: int = 1024
    overlong_buffer_len: int | None = None
    overlong_penalty_factor: float = 1.0
    length_penalty_coef: float = 0.0

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Read the fields from any object with the flags' field names; missing ones take the defaults."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: getattr(config, name) for name in names if hasattr(config, name)})


def overlong_penalty(lengths: npt.ArrayLike, *, max_length: int, buffer: int, factor: float = 1.0) -> np.ndarray:
    """DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13), f64 `[rows]` in `[-factor, 0]`.

    0 up to `max_length - buffer` tokens, from there falling linearly to `-factor` at `max_length`.

    Args:
        lengths: Response tokens, `[rows]`.
        max_length: Longest response, tokens.
        buffer: Length of the slope, tokens, in `[1, max_length]`.
        factor: Largest penalty.

    Raises:
        ValueError: a buffer outside of its bounds.
    """
    if not 1 <= buffer <= max_length:
        raise ValueError(f"--overlong-buffer-len {buffer}: must be from 1 to --rollout-max-response-len {max_length}")
    excess = np.asarray(lengths, np.float64) - (max_length - buffer)
    return -factor * np.clip(excess / buffer, 0.0, 1.0) + 0.0


def length_penalty(lengths: npt.ArrayLike, rewards: npt.ArrayLike, group_ids: npt.ArrayLike) -> np.ndarray:
    """Kimi k1.5's length reward (arXiv 2501.12599, section 2.3.3), f64 `[rows]` in `[-0.5, 0.5]`.

    With `s = 0.5 - (length - shortest) / (longest - shortest)` over the group: `s` for a right response (a reward above
    0), `min(s, 0)` for a wrong one. 0 in a group of equal lengths.

    Args:
        lengths: Response tokens, `[rows]`.
        rewards: `[rows]`.
        group_ids: `[rows]`, in any order.
    """
    tokens, right = np.asarray(lengths, np.float64), np.asarray(rewards, np.float64) > 0
    _, group = np.unique(np.asarray(group_ids), return_inverse=True)
    count = int(group.max()) + 1 if len(group) else 0
    shortest, longest = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(shortest, group, tokens)
    np.maximum.at(longest, group, tokens)
    spread = (longest - shortest)[group]
    score = np.where(spread > 0, 0.5 - (tokens - shortest[group]) / np.where(spread > 0, spread, 1.0), 0.0)
    return np.where(right, score, np.minimum(score, 0.0))


def shape_rewards(
    rewards: npt.ArrayLike, lengths: npt.ArrayLike, group_ids: npt.ArrayLike, settings: ShapingSettings
) -> np.ndarray:
    """Rewards plus the penalties that the flags ask for, f64 `[rows]`; NaN and infinity stay what they are."""
    shaped = np.asarray(rewards, np.float64)
    if settings.length_penalty_coef:
        shaped = shaped + settings.length_penalty_coef * length_penalty(lengths, rewards, group_ids)
    if settings.overlong_buffer_len is not None:
        shaped = shaped + overlong_penalty(
            lengths,
            max_length=settings.rollout_max_response_len,
            buffer=settings.overlong_buffer_len,
            factor=settings.overlong_penalty_factor,
        )
    return shaped
