"""Media in requests: from `image_data` and its like to what a prefill puts in the place of placeholders.

What lives here: reading the fields of a `/generate` body, under one bounded cache of prepared media, and where media
stand in a prompt. What does not: the encoders (`tower.py`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_prep.media import MediaReader
from relax_engine.backends.engines.local.errors import BadRequestError
from relax_engine.multimodal.content import Media, MediaError, digest_of, read_medium
from relax_engine.multimodal.families import Kind
from relax_engine.multimodal.media import MediaMismatchError, TrainInputs, blocks_of
from relax_engine.multimodal.positions import positions_of
from relax_engine.multimodal.processor import Features, MediaProcessor
from relax_engine.multimodal.towers import Places, places_of

FIELDS: Mapping[str, Kind] = {"image_data": "image", "video_data": "video", "audio_data": "audio"}
_CACHE_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class MediaPrompt:
    """The media of one prompt.

    Attributes:
        digest: Equal for prompts whose media are equal.
        inputs: The processor's arrays.
        places: Which tokens stand for which features.
        positions: `[3, prompt]`: time, height and width of each token.
        delta: What a later token's position is more than its index.
    """

    digest: str
    inputs: TrainInputs
    places: Places
    positions: np.ndarray
    delta: float

    def positions_of(self, length: int) -> np.ndarray:
        """Positions `[3, length]` of the prompt and what was sampled behind it."""
        behind = np.arange(self.positions.shape[1], length) + self.delta
        return np.concatenate([self.positions, np.tile(behind, (3, 1))], axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class PrefixMedia:
    """What a prefill needs of a prefix with media.

    Attributes:
        tokens: int64 `[n]`, the tokens that are media.
        embeddings: `[n, hidden]`, what stands in their place.
        deepstack: `[n, hidden]` each, what is added to them behind each of the first layers.
        positions: `[3, prefix]`.
    """

    tokens: Tensor
    embeddings: Tensor
    deepstack: tuple[Tensor, ...]
    positions: np.ndarray


class MediaRequests:
    """Reads the media of bodies. Called from worker threads."""

    def __init__(self, processor: MediaProcessor, cache_bytes: int = _CACHE_BYTES) -> None:
        """Prepared media are kept up to `cache_bytes`; the newest always."""
        self.processor, self._cache_bytes = processor, cache_bytes
        self._reader = MediaReader(None)
        self._prepared: OrderedDict[str, Features] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, body: Mapping[str, Any], count: int, *, batched: bool) -> list[Media]:
        """The media of each of `count` prompts.

        A field holds one medium, a list of media, or, of a batch, one of these (or null) per prompt. A medium is a data
        URI or base64; of a video, a list of such frames or `{"frames": [...], "fps": f}`.

        Raises:
            BadRequestError: there is not an entry per prompt.
        """
        media: list[Media] = [{} for _ in range(count)]
        for name, kind in FIELDS.items():
            value = body.get(name)
            if value is None or value == []:
                continue
            rows = value if batched else [value]
            if not isinstance(rows, list) or len(rows) != count:
                raise BadRequestError(f"{name} must have an entry per prompt, {count}, got {_brief(value)}")
            for prompt, row in enumerate(rows):
                items = row if isinstance(row, list) else [] if row is None else [row]
                if items:
                    media[prompt][kind] = items
        return media

    def place(self, tokens: Sequence[int], media: Media, where: str) -> tuple[tuple[int, ...], MediaPrompt]:
        """A prompt's tokens with a placeholder per feature, and its media.

        Raises:
            BadRequestError: media that do not decode, or whose placeholders the prompt does not have; names `where`.
        """
        try:
            digest = digest_of(media)
            features = self._features(digest, media)
            whole = self.processor.fit(tokens, features)
            blocks = blocks_of(self.processor.family, whole, features.train_inputs)
            positions = positions_of(self.processor.family, len(whole), blocks)
        except (MediaError, MediaMismatchError, TypeError) as error:
            raise BadRequestError(f"{where}: {error}") from error
        prompt = MediaPrompt(digest, features.train_inputs, places_of(blocks), positions.ids, positions.delta)
        return tuple(whole), prompt

    @property
    def cached_bytes(self) -> int:
        """What the prepared media take."""
        return sum(map(_size, self._prepared.values()))

    def _features(self, digest: str, media: Media) -> Features:
        with self._lock:
            if digest in self._prepared:
                self._prepared.move_to_end(digest)
                return self._prepared[digest]
        checked: Media = {kind: [self._medium(kind, item) for item in items] for kind, items in media.items()}
        features = self.processor.features(checked)
        with self._lock:
            self._prepared[digest] = features
            while self.cached_bytes > self._cache_bytes and len(self._prepared) > 1:
                self._prepared.popitem(last=False)
        return features

    def _medium(self, kind: Kind, value: Any) -> Any:
        if isinstance(value, str) and not value.startswith("data:") and ("." in value or "://" in value):
            raise MediaError(f"{_brief(value)}: this engine opens no files and no URLs; send a data URI or base64")
        return read_medium(kind, value, self._reader)


def _size(features: Features) -> int:
    return sum(array.nbytes for array in features.train_inputs.values())


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:77]}..."


def delta_tensor(deltas: Sequence[float], device: torch.device) -> Tensor:
    """What each row's positions are more than its indices: int64 where all are whole numbers, else float32."""
    whole = all(float(delta).is_integer() for delta in deltas)
    return torch.tensor([int(d) for d in deltas] if whole else deltas, device=device)
