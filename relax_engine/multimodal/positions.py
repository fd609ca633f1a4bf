"""Rotary positions of a sample with images, videos and audio: three numbers for each token, in closed form.

What lives here: time, height and width of each token, equal to transformers' `get_rope_index` of the family. What does
not: which tokens are media (`media.py`), and turning positions into angles (each model does).

Text counts on by 1 in all three. A medium of `t x h x w` features that starts at position s has
`(s + moment i, s + j, s + k)`; the text behind it goes on at `s + max(h, w)`, or behind its last position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relax_engine.multimodal.families import MediaFamily
from relax_engine.multimodal.media import Block, Medium, TrainInputs, blocks_of


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of one sample.

    Attributes:
        ids: `[3, sequence]`: time, height, width. int64, or float32 where the family's positions are real numbers.
        next: the position of a text token behind the sample.
    """

    ids: np.ndarray
    next: float

    @property
    def delta(self) -> float:
        """What a later token's position is more than its index."""
        return self.next - self.ids.shape[1]


def media_positions(
    family: MediaFamily, tokens: Sequence[int] | np.ndarray, train_inputs: TrainInputs, *, prompt: int = 0
) -> Positions:
    """The positions of a sample's tokens.

    transformers' `generate` puts what it samples behind the largest position of the prompt, which for a video that
    lasts longer than its frames are wide is not where its own forward pass over the same tokens puts it; `next` is the
    latter, so that what was sampled and what is trained on have the same positions.

    Args:
        tokens: token ids, `[sequence]`.
        train_inputs: the media's tensors; {} for text.
        prompt: among so many leading tokens no placeholder is text (`blocks_of`).

    Raises:
        MediaMismatchError: placeholders and media do not match.
    """
    return positions_of(family, len(tokens), blocks_of(family, tokens, train_inputs, prompt=prompt))


def positions_of(family: MediaFamily, length: int, blocks: Sequence[Block]) -> Positions:
    """The positions of `length` tokens, of which `blocks` are media."""
    ids = np.zeros((3, length), np.float32 if family.real_time else np.int64)
    at: float = 0
    done = 0
    for block in blocks:
        first = min(int(run.tokens[0]) for run in block)
        ids[:, done:first] = at + np.arange(first - done)
        at += first - done
        for run in block:
            ids[:, run.tokens] = at + _inside(family, run.medium)
        if family.real_time:
            at = float(ids[:, _last_part(block)].max()) + 1
        else:
            at += max(block[0].medium.grid[1:])
        done = max(int(run.tokens[-1]) for run in block) + 1
    ids[:, done:] = at + np.arange(length - done)
    return Positions(ids, at + length - done)


def _inside(family: MediaFamily, medium: Medium) -> np.ndarray:
    """Positions of a medium's tokens, from 0: `[3, count]`."""
    if medium.kind == "audio":
        return np.tile(np.arange(medium.count), (3, 1))
    t, h, w = (index.ravel() for index in np.indices(medium.grid))
    if medium.seconds is None or family.time_unit is None:
        return np.stack([t, h, w])
    seconds, unit = np.float32(medium.seconds), np.float32(family.time_unit)  # as transformers rounds
    moments = t.astype(np.float32) * seconds * unit if family.real_time else t.astype(np.float32) * (unit * seconds)
    return np.stack([moments if family.real_time else moments.astype(np.int64), h, w])


def _last_part(block: Block) -> np.ndarray:
    """A medium's tokens; of a video and its sound those of the one that lasts longer, behind the other's end."""
    last = max(block, key=lambda run: int(run.tokens[-1]))
    others = [int(run.tokens[-1]) for run in block if run is not last]
    return last.tokens[last.tokens > max(others, default=-1)]
