"""Which tokens of a packed micro-batch have to be computed: each shared prompt once, no last token.

What lives here: the index arithmetic, in NumPy. What does not: packing itself, tensors.

A token's activations depend on the tokens before it alone, so rows with the same prompt (the samples of a group)
have the same activations there, and one copy serves all of them: attention reads it for every row, and its gradient
is the sum over the rows. The last token of a response predicts nothing and no token attends to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relax_engine.backends.megatron.packing import Bucket, Packing


@dataclass(frozen=True, slots=True)
class Compact:
    """A packed micro-batch without the tokens that need no computation.

    Attributes:
        tokens: int64 `[total]`, what is computed.
        real: how many of them are the batch's; placeholders follow.
        positions, features: of each token, as in `Packing`.
        predictors: int64 `[R]`, for each response token the index of the token that predicts it.
        targets: int64 `[R]`, the response tokens.
        response_offsets: int64 `[rows + 1]`, boundaries of the rows inside `[R]`.
        buckets: rectangles that attention works on, one line for each sequence.
        to_padded: int64 `[sum of rectangle sizes]`, the token of each rectangle cell; a shared one has several.
        to_packed: int64 `[total]`, one rectangle cell of each token.
        sources: int64 `[total]`, the place of each token among the packed ones.
        stand_ins: int64, for each packed token the packed one that is computed in its place, itself if it is computed.
    """

    tokens: np.ndarray
    real: int
    positions: np.ndarray
    predictors: np.ndarray
    targets: np.ndarray
    response_offsets: np.ndarray
    buckets: tuple[Bucket, ...]
    to_padded: np.ndarray
    to_packed: np.ndarray
    sources: np.ndarray
    stand_ins: np.ndarray
    features: np.ndarray | None = None


def compact(packing: Packing, *, multiple_of: int = 1, round_to: int = 1) -> Compact:
    """Leave out what need not be computed, but keep the total a multiple of `multiple_of`.

    Args:
        packing: its own total is a multiple of `multiple_of`.
        round_to: make the total a multiple of `multiple_of * round_to` if that takes no more than the tokens left out.
    """
    starts, ends = packing.cu_lengths[:-1].astype(np.int64), packing.cu_lengths[1:].astype(np.int64)
    everything = np.arange(len(packing.tokens))
    stand_in = everything.copy()  # the computed token that each token is, or whose cell it may fill
    seen: dict[tuple[bytes, bytes], int] = {}
    for row, response in enumerate(np.diff(packing.response_offsets).tolist()):
        start, prompt_end = int(starts[row]), int(ends[row]) - response
        media = packing.identities[row] if packing.identities else b""
        first = seen.setdefault((packing.tokens[start:prompt_end].tobytes(), media), start)
        stand_in[start:prompt_end] = np.arange(first, first + prompt_end - start)
        if response:
            stand_in[ends[row] - 1] = stand_in[ends[row] - 2]
    keep = stand_in == everything
    spare, kept = np.flatnonzero(~keep), int(keep.sum())
    missing = -kept % (multiple_of * round_to)
    kept_anyway = spare[: missing if missing <= len(spare) else -kept % multiple_of]
    keep[kept_anyway] = True
    stand_in[kept_anyway] = kept_anyway
    renumbered = (np.cumsum(keep) - 1)[stand_in]
    return Compact(
        tokens=packing.tokens[keep],
        real=int(np.count_nonzero(keep[: packing.real])),
        positions=packing.positions[keep],
        features=None if packing.features is None else packing.features[keep],
        predictors=renumbered[packing.predictors],
        targets=packing.targets,
        response_offsets=packing.response_offsets,
        buckets=packing.buckets,
        to_padded=renumbered[packing.to_padded],
        to_packed=packing.to_packed[keep],
        sources=everything[keep],
        stand_ins=stand_in,
    )
