"""The media of a micro-batch's rows: positions, which features its tokens stand for, and the tensors to encode.

What lives here: index arithmetic in NumPy over packed rows (column `multimodal_train_inputs`). What does not: encoding
and merging (`media_model.py`), placeholders of one sample (`relax_engine.multimodal`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from relax_engine.backends.megatron.packing import Packing
from relax_engine.multimodal.families import MediaFamily
from relax_engine.multimodal.media import TRAIN_INPUTS, MediaMismatchError, TrainInputs, blocks_of, media_of
from relax_engine.multimodal.positions import positions_of
from relax_engine.multimodal.towers import concatenated, feature_order, places_of
from relax_engine.stream.columns import ColumnBatch


def with_media(
    packing: Packing, rows: ColumnBatch | None, family: MediaFamily
) -> tuple[Packing, dict[str, Tensor] | None]:
    """`packing` with positions and features of media, and the tensors of all media; None where there are none.

    Rows with equal tensors (the samples of a group) are encoded once; a prompt is shared between such rows alone.

    Raises:
        MediaMismatchError: placeholders and media of a row do not match; it names the row.
    """
    inputs = _inputs(rows)
    identities = [_identity(each) for each in inputs]
    distinct = {identity: each for identity, each in zip(identities, inputs, strict=True) if each}
    order = feature_order([_counts(family, each) for each in distinct.values()])
    feature_rows = dict(zip(distinct, order, strict=True))
    positions = np.zeros((len(packing.tokens), 3), np.float32)
    features = np.full(len(packing.tokens), -1, np.int64)
    bounds, responses = packing.cu_lengths.tolist(), np.diff(packing.response_offsets)
    for row, (start, end) in enumerate(itertools.pairwise(bounds)):
        own = inputs[row] if row < len(inputs) else {}
        prompt = end - start - int(responses[row]) if row < len(inputs) else 0
        try:
            blocks = blocks_of(family, packing.tokens[start:end], own, prompt=prompt)
        except MediaMismatchError as error:
            raise MediaMismatchError(f"row {row} of the batch: {error}") from error
        positions[start:end] = positions_of(family, end - start, blocks).ids.T
        if blocks:
            places = places_of(blocks)
            features[start + places.tokens] = feature_rows[identities[row]][places.features]
    with_them = dataclasses.replace(
        packing, positions=positions, features=features, identities=tuple(identities) or None
    )
    return with_them, concatenated(list(distinct.values())) if distinct else None


def _inputs(rows: ColumnBatch | None) -> list[TrainInputs]:
    if rows is None:
        return []
    if TRAIN_INPUTS not in rows:
        return [{}] * rows.num_rows
    return [value or {} for value in rows[TRAIN_INPUTS].values]


def _identity(inputs: Mapping[str, Any]) -> bytes:
    """The same for equal tensors; b"" for none."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(inputs):
        if inputs[name] is not None:
            array = np.ascontiguousarray(inputs[name])
            digest.update(f"{name} {array.dtype} {array.shape};".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest() if inputs else b""


def _counts(family: MediaFamily, inputs: TrainInputs) -> dict[str, int]:
    """Features of each kind."""
    return {kind: sum(medium.count for medium in media) for kind, media in media_of(family, inputs).items()}
