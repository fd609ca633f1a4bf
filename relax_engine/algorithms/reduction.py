"""How per-token losses become one number: weights computed once, over the global batch.

What lives here: the weight of each token. Because the weights are fixed before the batch is split,
the loss of an optimizer step is a plain sum over tokens, and does not depend on micro-batches,
packing or the number of data-parallel ranks. What does not: the sum itself (`objective`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relax_engine.algorithms.settings import Reduction

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Size of the global batch, for a caller that holds only a part of it.

    `samples` counts distinct sample indices, `tokens` unmasked response tokens, both without
    excluded rows.
    """

    samples: int
    tokens: int

    def __add__(self, other: BatchTotals) -> BatchTotals:
        """The size of two parts together."""
        return BatchTotals(self.samples + other.samples, self.tokens + other.tokens)


UNKNOWN_TOTALS = BatchTotals(samples=1, tokens=1)
"""For the weights of a part of a batch whose size is not known yet; `loss_scale` makes up for it at the end."""


def loss_scale(totals: BatchTotals, how: Reduction) -> float:
    """The factor that turns a loss whose weights were made with `UNKNOWN_TOTALS` into the loss of the batch."""
    return 1.0 / max(totals.tokens if how == "token_mean" else totals.samples, 1)


def row_ids(offsets: Tensor) -> Tensor:
    """The row of each token, int64 `[R]`, from offsets `[rows + 1]`."""
    lengths = offsets.diff()
    return lengths.new_ones(lengths.numel()).cumsum(0).sub(1).repeat_interleave(lengths)


def row_sums(values: Tensor, offsets: Tensor) -> Tensor:
    """Sum of `values` `[R]` over each row, `[rows]`; 0 for an empty row."""
    return values.new_zeros(offsets.numel() - 1).index_add(0, row_ids(offsets), values)


def loss_weights(
    mask: Tensor,
    offsets: Tensor,
    *,
    how: Reduction,
    sample_indices: Tensor | None = None,
    excluded: Tensor | None = None,
    constant_length: int | None = None,
    totals: BatchTotals | None = None,
) -> Tensor:
    """The factor of each token's loss in the step's loss.

    With `N` samples in the global batch and `m_t` the mask:

    - `sample_mean`: `m_t / (N * M_s)`, `M_s` the unmasked tokens of the token's *sample*. Rows with
      one sample index are one sample: they share the denominator and count once in `N`. A sample
      without unmasked tokens contributes 0 and counts in `N`.
    - `token_mean`: `m_t / (unmasked tokens of the global batch)`.
    - `constant`: `m_t / (N * constant_length)` (Dr. GRPO, arXiv 2503.20783).

    Args:
        mask: `[R]`, nonzero where a token counts.
        offsets: int64 `[rows + 1]`.
        how: The reduction.
        sample_indices: int64 `[rows]`; None means that every row is a sample of its own.
        excluded: bool `[rows]`, rows that leave numerator and denominators (rewards that failed).
        constant_length: Tokens; needed by `constant`.
        totals: Needed when `mask` is only part of the global batch. Rows that share a sample index
            must then be in the same part.

    Returns:
        f32 `[R]`.

    Raises:
        ValueError: unknown reduction, or `constant` without a positive length.
    """
    import torch

    rows = row_ids(offsets)
    kept = (mask != 0).double()
    num_rows = offsets.numel() - 1
    keep_row = torch.ones(num_rows, dtype=torch.bool) if excluded is None else ~excluded.bool()
    keep_row = keep_row.to(mask.device)
    kept = kept * keep_row[rows]
    if sample_indices is None:
        sample_of_row, num_samples = torch.arange(num_rows, device=mask.device), num_rows
    else:
        _, sample_of_row = sample_indices.unique(return_inverse=True)
        num_samples = int(sample_of_row.max()) + 1 if num_rows else 0
    present = kept.new_zeros(num_samples).index_add(0, sample_of_row, keep_row.double())
    if totals is None:
        totals = BatchTotals(samples=int((present > 0).sum()), tokens=int(kept.sum()))
    samples = max(totals.samples, 1)
    if how == "sample_mean":
        sample_tokens = kept.new_zeros(num_samples).index_add(0, sample_of_row[rows], kept)
        weights = kept / (samples * sample_tokens.clamp(min=1.0)[sample_of_row[rows]])
    elif how == "token_mean":
        weights = kept / max(totals.tokens, 1)
    elif how == "constant":
        if constant_length is None or constant_length <= 0:
            raise ValueError(
                f"--loss-constant-length {constant_length}: the constant reduction needs a positive length"
            )
        weights = kept / (samples * constant_length)
    else:
        raise ValueError(f"unknown reduction {how!r}; use sample_mean, token_mean or constant")
    return weights.float()


def reducer_scale(
    mask: Tensor,
    sample_of_row: Tensor,
    excluded: Tensor,
    *,
    per_token: bool,
    totals: BatchTotals | None = None,
) -> Tensor:
    """What turns the sum of a user's reducer into a mean over the global batch, as a column f32 `[R]` of one value.

    1 over the unmasked tokens of the batch (`per_token`), or over its samples.

    Args:
        mask: `[R]`, nonzero where a token counts; without excluded rows.
        sample_of_row: int64 `[rows]`, sample indices.
        excluded: bool `[rows]`.
        per_token: Whether the reducer adds up tokens, or means of samples.
        totals: Size of the global batch when the rows are only a part of it.
    """
    import torch

    if totals is None:
        totals = BatchTotals(samples=sample_of_row[~excluded].unique().numel(), tokens=int((mask != 0).sum()))
    count = max(totals.tokens if per_token else totals.samples, 1)
    return torch.full(mask.shape, 1.0 / count, device=mask.device)
