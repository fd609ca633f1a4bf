"""The media of one sample: which features each gives, and which tokens stand for them.

What lives here: reading grids and lengths off the processor's tensors, and the accounting of placeholders. What does
not: positions (`positions.py`), features themselves (`towers.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_engine.multimodal.families import Kind, MediaFamily

TRAIN_INPUTS = "multimodal_train_inputs"
"""The stream's column of media: of each row a `TrainInputs`, or None."""
TrainInputs = Mapping[str, Any]
"""The processor's tensors (or arrays) of one sample by transformers' names; a kind of media that is absent has none."""


class MediaMismatchError(ValueError):
    """The placeholders among a sample's tokens are not those of its media."""


@dataclass(frozen=True, slots=True)
class Medium:
    """An image, an audio clip, a video, or one frame of a video whose frames stand apart.

    `grid` is how many features it has along time, height and width. Moments are `seconds` apart, or where that is None
    one position.
    """

    kind: Kind
    grid: tuple[int, int, int]
    seconds: float | None = None

    @property
    def count(self) -> int:
        """Features, and so tokens."""
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True, slots=True)
class Run:
    """The tokens that stand for one medium.

    `tokens` is int64 `[count]`, ascending; consecutive but for a video that is interleaved with its sound track.
    `first` is the medium's first row among the sample's features, which are in the order images, videos, audio.
    """

    medium: Medium
    tokens: np.ndarray
    first: int


Block = tuple[Run, ...]
"""What stands in one place: a medium, or a video and its sound track."""


def media_of(family: MediaFamily, train_inputs: TrainInputs) -> dict[Kind, list[Medium]]:
    """The media of each kind, in order.

    Raises:
        MediaMismatchError: tensors that the family does not read, or without their grids.
    """
    known: dict[Kind, str] = {"image": "pixel_values", "video": "pixel_values_videos", "audio": "input_features"}
    found: dict[Kind, list[Medium]] = {}
    for kind, name in known.items():
        if train_inputs.get(name) is None:
            continue
        if kind not in family.placeholders:
            raise MediaMismatchError(f"{family.model_type} reads no {kind}, and the sample has {name!r}")
        found[kind] = _sounds(family, train_inputs) if kind == "audio" else _grids(family, kind, train_inputs)
    return found


def _grids(family: MediaFamily, kind: Kind, train_inputs: TrainInputs) -> list[Medium]:
    name = f"{kind}_grid_thw"
    if train_inputs.get(name) is None:
        raise MediaMismatchError(f"a sample with a {kind} needs {name!r} beside its pixels")
    grids = np.asarray(train_inputs[name]).astype(np.int64).reshape(-1, 3)
    pixels = len(train_inputs["pixel_values" if kind == "image" else "pixel_values_videos"])
    if int(grids.prod(axis=1).sum()) != pixels:
        raise MediaMismatchError(f"{name} {grids.tolist()} describes {grids.prod(axis=1).sum()} patches, not {pixels}")
    grids = grids // np.array([1, family.merge, family.merge])
    seconds = _seconds(family, len(grids), train_inputs) if kind == "video" else [None] * len(grids)
    media = []
    for (t, h, w), between in zip(grids.tolist(), seconds, strict=True):
        apart = kind == "video" and family.frames_apart
        media += [Medium(kind, (1, h, w))] * t if apart else [Medium(kind, (t, h, w), between)]
    return media


def _seconds(family: MediaFamily, videos: int, train_inputs: TrainInputs) -> list[float | None]:
    """Seconds between two moments of each video, 1 where the processor does not say."""
    if family.time_unit is None:
        return [None] * videos
    given = next((train_inputs[name] for name in _SECONDS if train_inputs.get(name) is not None), None)
    each = np.ones(videos) if given is None else np.asarray(given, np.float32).reshape(-1)
    if len(each) != videos:
        raise MediaMismatchError(f"{videos} videos have {len(each)} second_per_grid_ts")
    return [float(between) for between in each]


_SECONDS = ("second_per_grid_ts", "video_second_per_grid")


def _sounds(family: MediaFamily, train_inputs: TrainInputs) -> list[Medium]:
    mask = train_inputs.get("feature_attention_mask")
    if mask is None:
        raise MediaMismatchError("a sample with audio needs 'feature_attention_mask' beside its input_features")
    frames = np.asarray(mask).astype(np.int64).sum(axis=1)
    return [Medium("audio", (audio_tokens(int(count), family.audio_window), 1, 1)) for count in frames]


def audio_tokens(frames: int, window: int) -> int:
    """Features of `frames` mel frames: each piece of `2 window` frames is halved three times, rounding up."""
    whole, rest = divmod(frames, 2 * window)
    return whole * _halved(2 * window) + _halved(rest)


def _halved(frames: int) -> int:
    for _ in range(3):
        frames = (frames + 1) // 2
    return frames


def blocks_of(
    family: MediaFamily, tokens: Sequence[int] | np.ndarray, train_inputs: TrainInputs, *, prompt: int = 0
) -> list[Block]:
    """Which tokens stand for which medium, in the order of the tokens.

    The next medium of a kind stands where, behind an opening token, there are exactly as many placeholders as it has
    features. Placeholders elsewhere are text: a model may write them itself.

    Args:
        tokens: token ids of the sample, `[sequence]`.
        prompt: among so many leading tokens no placeholder is text.

    Raises:
        MediaMismatchError: a medium without its tokens, or placeholders without their medium; it gives the counts.
    """
    ids = np.asarray(tokens, np.int64)
    media = media_of(family, train_inputs)
    first = _first_rows(media)
    used = dict.fromkeys(media, 0)
    blocks: list[Block] = []
    for places in _stretches(family, ids):
        found = {kind: _next(media, used, kind) for kind in places}
        fits = all(medium is not None and medium.count == len(places[kind]) for kind, medium in found.items())
        start = min(int(where[0]) for where in places.values())
        if fits and start and int(ids[start - 1]) in family.openers:
            runs = [Run(m, places[kind], first[kind][used[kind]]) for kind, m in found.items() if m is not None]
            blocks.append(tuple(runs))
            for kind in places:
                used[kind] += 1
        elif start < prompt:
            raise MediaMismatchError(_explained(places, found))
    for kind, of_kind in media.items():
        if used[kind] < len(of_kind):
            raise MediaMismatchError(
                f"the sample has {len(of_kind)} {kind} parts, and its {len(ids)} tokens place {used[kind]} of them: "
                f"nowhere stand the {of_kind[used[kind]].count} placeholders of the next (was the prompt cut?)"
            )
    return blocks


def _next(media: Mapping[Kind, Sequence[Medium]], used: Mapping[Kind, int], kind: Kind) -> Medium | None:
    left = media.get(kind, ())[used.get(kind, 0) :]
    return left[0] if left else None


def _first_rows(media: Mapping[Kind, Sequence[Medium]]) -> dict[Kind, list[int]]:
    """The first feature row of each medium."""
    rows, starts = 0, dict[Kind, list[int]]()
    for kind, of_kind in media.items():
        starts[kind] = []
        for medium in of_kind:
            starts[kind].append(rows)
            rows += medium.count
    return starts


def _stretches(family: MediaFamily, ids: np.ndarray) -> list[dict[Kind, np.ndarray]]:
    """Stretches of placeholders without other tokens between them, and in each the places of each kind."""
    masks = {kind: ids == placeholder for kind, placeholder in family.placeholders.items()}
    inside = np.logical_or.reduce(list(masks.values()))
    edges = np.flatnonzero(np.diff(inside.astype(np.int8), prepend=0, append=0))
    stretches = []
    for start, end in edges.reshape(-1, 2).tolist():
        places = {kind: start + np.flatnonzero(mask[start:end]) for kind, mask in masks.items()}
        stretches.append({kind: where for kind, where in places.items() if len(where)})
    return stretches


def _explained(places: Mapping[Kind, np.ndarray], found: Mapping[Kind, Medium | None]) -> str:
    parts = []
    for kind, where in places.items():
        medium = found[kind]
        has = f"no {kind} is left for them" if medium is None else f"the next {kind} has {medium.count} features"
        parts.append(f"{len(where)} {kind} placeholders from token {where[0]} on, where {has}")
    return "the prompt has " + " and ".join(parts)
