"""Per-token returns: discounted sums and generalised advantage estimation.

What lives here: recursions from the end of a response to its beginning, for all rows of a batch at
once. What does not: which algorithm uses which, and how the token rewards came about.

Masked tokens (a tool's output, for example) are not actions: the recursions run over the unmasked
tokens of a row as if they followed one another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax_engine.algorithms.reduction import row_ids
from relax_engine.algorithms.spec import AdvantageInputs

if TYPE_CHECKING:
    from torch import Tensor


def token_rewards(inputs: AdvantageInputs) -> Tensor:
    """The row's reward at its last unmasked token, minus the KL penalty at every token.

    Returns:
        f64 `[R]`, 0 where masked.
    """
    rewards = _zeros(inputs.mask) if inputs.kl_penalty is None else -inputs.kl_penalty.double()
    last = _last_unmasked(inputs.mask, inputs.offsets)
    return rewards.index_add(0, last, inputs.rewards.double()[row_ids(inputs.offsets)[last]])


def discounted_returns(rewards: Tensor, mask: Tensor, offsets: Tensor, *, gamma: float) -> Tensor:
    """`G_t = u_t + gamma G_{t+1}` over the unmasked tokens of each row.

    Args:
        rewards: `u`, `[R]`.
        mask: bool `[R]`.
        offsets: int64 `[rows + 1]`.
        gamma: Discount per token.

    Returns:
        f64 `[R]`, 0 where masked.
    """
    kept = mask.nonzero().squeeze(1)
    scanned = _reverse_scan(rewards[kept].double(), row_ids(offsets)[kept], gamma)
    return _zeros(mask).index_copy(0, kept, scanned)


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, offsets: Tensor, *, gamma: float, lambd: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438) over the unmasked tokens of each row.

    `d_t = u_t + gamma V_{t+1} - V_t`, `A_t = d_t + gamma lambda A_{t+1}`, return = `A + V`; after the
    last token V and A are 0.

    Args:
        rewards: `u`, `[R]`.
        values: `V`, the critic's value at each token before it is chosen, `[R]`.
        mask: bool `[R]`.
        offsets: int64 `[rows + 1]`.
        gamma: Discount per token.
        lambd: 1 for the return minus the value, 0 for the one-step difference.

    Returns:
        `(advantages, returns)`, f64 `[R]`, 0 where masked.
    """
    kept = mask.nonzero().squeeze(1)
    rows = row_ids(offsets)[kept]
    value = values[kept].double()
    following = value.roll(-1)
    following[~_continues(rows, 1)] = 0.0
    delta = rewards[kept].double() + gamma * following - value
    advantage = _reverse_scan(delta, rows, gamma * lambd)
    return _zeros(mask).index_copy(0, kept, advantage), _zeros(mask).index_copy(0, kept, advantage + value)


def _reverse_scan(values: Tensor, rows: Tensor, factor: float) -> Tensor:
    """`x_t = values_t + factor x_{t+1}` inside runs of equal `rows`, by doubling: log2(longest run) passes.

    After the pass with distance d, `x_t` holds the first 2d terms of its sum; the terms after them
    are those of `x_{t+2d}`, weighted with `factor^2d`.
    """
    result = values.clone()
    distance, weight = 1, factor
    while distance < len(values):
        inside = _continues(rows, distance)
        if not inside.any():
            break
        result = result + weight * result.roll(-distance).masked_fill(~inside, 0.0)
        distance, weight = 2 * distance, weight * weight
    return result


def _continues(rows: Tensor, distance: int) -> Tensor:
    """Bool: whether the element `distance` further on is of the same row."""
    same = rows.roll(-distance) == rows
    same[max(len(rows) - distance, 0) :] = False
    return same


def _zeros(mask: Tensor) -> Tensor:
    return mask.double().zero_()


def _last_unmasked(mask: Tensor, offsets: Tensor) -> Tensor:
    """Index of the last unmasked token of every row that has one."""
    kept = mask.nonzero().squeeze(1)
    return kept[~_continues(row_ids(offsets)[kept], 1)]
