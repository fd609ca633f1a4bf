"""The columns of the two tables, and rows for them from what rollout and training hold.

What lives here: Arrow schemas and conversions, without copies where the columns are NumPy's already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from relax_engine.observe.rollouts.media import MediaStore
from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.stream.row_sums import row_means, row_sums
from relax_engine.types import Sample

_MEDIA_TEXT = re.compile(r"(data:[\w.+-]+/[\w.+-]+;base64,)[A-Za-z0-9+/=]{64,}")

TIMINGS = ("admitted", "started", "generated", "scored")
"""Of a sample's `timings`, in the order in which they come."""

SAMPLES = pa.schema(
    [
        ("step", pa.int32()),
        ("sample_index", pa.int64()),
        ("group_index", pa.int64()),
        ("status", pa.string()),
        ("reward", pa.float32()),
        ("normalized_reward", pa.float32()),
        ("reward_parts", pa.map_(pa.string(), pa.float64())),
        ("prompt_length", pa.int32()),
        ("response_length", pa.int32()),
        ("trained_length", pa.int32()),
        ("mean_log_prob", pa.float32()),
        ("first_version", pa.int32()),
        ("last_version", pa.int32()),
        ("abort_count", pa.int32()),
        ("engine", pa.string()),
        ("admitted", pa.float64()),
        ("started", pa.float64()),
        ("generated", pa.float64()),
        ("scored", pa.float64()),
        ("placed", pa.float64()),
        ("environment_seconds", pa.float32()),
        ("label", pa.string()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("metadata", pa.string()),
        ("media", pa.string()),
        ("spans", pa.string()),
        ("tokens", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.uint8())),
        ("log_probs", pa.list_(pa.float32())),
    ]
)
"""Times are seconds since the epoch; `spans` lists `[version, start, end]` of response tokens; lists of log-probs and
masks have one entry a response token, `tokens` also the prompt's. Prompts that are conversations, metadata and media
(`MediaStore.describe`) are JSON."""

TRAINING = pa.schema(
    [
        ("step", pa.int32()),
        ("sample_index", pa.int64()),
        ("age", pa.int32()),
        ("trained", pa.float64()),
        ("advantage", pa.float32()),
        ("kl", pa.float32()),
        ("log_prob_gap", pa.float32()),
        ("advantages", pa.list_(pa.float32())),
        ("train_log_probs", pa.list_(pa.float32())),
        ("ref_log_probs", pa.list_(pa.float32())),
    ]
)
"""`age` in weight versions; `trained` is when the trainer began with the sample's part of the step. `advantage` is the
mean over trained tokens, `kl` that of log-prob minus reference log-prob, `log_prob_gap` the largest difference between
trainer's and engine's. Null where the run computes none."""


def samples_table(
    step: int, samples: Sequence[Sample], batch: ColumnBatch, placed: float, media: MediaStore
) -> pa.Table:
    """Rows of `samples`, for samples that `to_columns` made `batch` of, written to the stream at `placed`.

    `media` keeps what images and audio they carry.
    """
    log_probs, lengths = batch["rollout_log_probs"], batch["response_lengths"].values
    columns: dict[str, Any] = {
        "step": np.full(len(samples), step, np.int32),
        "sample_index": batch["sample_indices"].values,
        "group_index": batch["group_index"].values,
        "status": [sample.status.value for sample in samples],
        "reward": batch["raw_reward"].values,
        "normalized_reward": batch["rewards"].values,
        "reward_parts": [_reward_parts(sample.reward) for sample in samples],
        "prompt_length": batch["tokens"].lengths - lengths,
        "response_length": lengths,
        "trained_length": row_sums(batch["loss_masks"].values, batch["loss_masks"]).astype(np.int32),
        "mean_log_prob": row_means(log_probs.values, log_probs),
        "first_version": batch["first_version"].values,
        "last_version": batch["last_version"].values,
        "abort_count": [sample.abort_count for sample in samples],
        "engine": [sample.engine for sample in samples],
        **{name: [sample.timings.get(name) for sample in samples] for name in TIMINGS},
        "placed": np.full(len(samples), placed),
        "environment_seconds": [sample.non_generation_time for sample in samples],
        "label": [None if sample.label is None else str(sample.label) for sample in samples],
        "prompt": [_without_media(text) for text in _texts([sample.prompt for sample in samples])],
        "response": [sample.response for sample in samples],
        "metadata": _texts([sample.metadata or None for sample in samples]),
        "media": _texts([media.describe(sample.multimodal_inputs) for sample in samples]),
        "spans": [json.dumps([(s.version, s.start, s.end) for s in sample.weight_versions]) for sample in samples],
        "tokens": _lists(batch["tokens"], pa.int32()),
        "loss_mask": _lists(batch["loss_masks"], pa.uint8()),
        "log_probs": _lists(log_probs, pa.float32()),
    }
    return pa.table(columns, schema=SAMPLES)


def training_table(step: int, version: int, batch: ColumnBatch, began: float) -> pa.Table:
    """Rows of `training`, for rows trained in `step` from `began` on, with weights of `version` before it."""
    masks = batch["loss_masks"]
    first = batch["first_version"].values
    empty = [None] * batch.num_rows
    current = batch.get("log_probs")
    reference = batch.get("ref_log_probs")
    sampled = batch.get("rollout_log_probs")
    columns: dict[str, Any] = {
        "step": np.full(batch.num_rows, step, np.int32),
        "sample_index": batch["sample_indices"].values,
        "age": np.where(first < 0, 0, version - first).astype(np.int32),
        "trained": np.full(batch.num_rows, began),
        "advantage": row_means(batch["advantages"].values, masks, masks.values),
        "kl": empty,
        "log_prob_gap": empty,
        "advantages": _lists(batch["advantages"], pa.float32()),
        "train_log_probs": empty if current is None else _lists(current, pa.float32()),
        "ref_log_probs": empty if reference is None else _lists(reference, pa.float32()),
    }
    policy = sampled if current is None else current
    if policy is not None and reference is not None:
        columns["kl"] = row_means(policy.values - reference.values, masks, masks.values)
    if current is not None and sampled is not None:
        columns["log_prob_gap"] = _largest(np.abs(current.values - sampled.values), masks)
    return pa.table(columns, schema=TRAINING)


def _offsets(column: Column) -> np.ndarray:
    assert column.offsets is not None, "a ragged column"
    return column.offsets


def _lists(column: Column, value_type: pa.DataType) -> pa.Array:
    values = pa.array(np.ascontiguousarray(column.values), value_type)
    return pa.ListArray.from_arrays(pa.array(_offsets(column).astype(np.int32)), values)


def _largest(values: np.ndarray, column: Column) -> np.ndarray:
    offsets = _offsets(column)
    largest = np.zeros(len(offsets) - 1, np.float32)
    filled = offsets[1:] > offsets[:-1]
    if filled.any():
        largest[filled] = np.maximum.reduceat(values, offsets[:-1][filled])
    return largest


def _texts(values: Sequence[Any]) -> list[str | None]:
    """Texts as they are, everything else as JSON; what JSON cannot hold by its `repr`. Equal objects once."""
    made: dict[int, str | None] = {}
    texts: list[str | None] = []
    for value in values:
        if value is None or isinstance(value, str):
            texts.append(value)
            continue
        if id(value) not in made:
            made[id(value)] = json.dumps(value, default=repr, ensure_ascii=False)
        texts.append(made[id(value)])
    return texts


def _without_media(text: str | None) -> str | None:
    """A prompt without the images and audio that are written into it; the column `media` has them."""
    return text if text is None or ";base64," not in text else _MEDIA_TEXT.sub(r"\1…", text)


def _reward_parts(reward: Any) -> list[tuple[str, float]] | None:
    if not isinstance(reward, dict):
        return None
    return [(str(key), float(value)) for key, value in reward.items() if isinstance(value, bool | int | float)]
