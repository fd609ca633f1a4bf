"""From a Megatron distributed checkpoint to a Hugging Face directory, tensor by tensor.

One stored layer is read, split into its Hugging Face tensors and written before the next is read. The
directory is built beside its place and renamed when it is whole.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from relax_engine.checkpoint.dcp_layout import locate
from relax_engine.checkpoint.dcp_reader import DcpReader
from relax_engine.checkpoint.dtypes import dtype_name, parse_dtype
from relax_engine.checkpoint.durable import sync_path, sync_tree
from relax_engine.checkpoint.errors import DamagedCheckpointError, OutputExistsError
from relax_engine.checkpoint.families import model_spec
from relax_engine.checkpoint.hf_directory import copy_companions, shard_names, write_config, write_index
from relax_engine.checkpoint.hf_reader import hf_shapes, read_config
from relax_engine.checkpoint.manager import resolve_checkpoint
from relax_engine.checkpoint.mapping import SCORE, Layout, ParameterMapping, WeightMap
from relax_engine.checkpoint.progress import byte_progress
from relax_engine.checkpoint.safetensors_writer import PlannedTensor, plan_shards, write_safetensors

DEFAULT_SHARD_BYTES = 5 * 2**30

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExportResult:
    """``path`` is the Hugging Face directory, ``source`` the iteration it was made from; ``nbytes`` counts weights."""

    path: Path
    source: Path
    num_tensors: int
    num_shards: int
    nbytes: int
    dtype: str


def export_checkpoint(
    dcp_dir: Path | str,
    out_dir: Path | str,
    *,
    origin_hf_dir: Path | str,
    dtype: str | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    force: bool = False,
) -> ExportResult:
    """Convert one iteration directory, or the latest complete one of a run root, to Hugging Face.

    Memory: the largest stored parameter and a block of a few megabytes.

    Args:
        origin_hf_dir: the model the run began with; gives config, tokenizer, chat template.
        dtype: float32, bfloat16 or float16; None keeps the stored types.
        max_shard_bytes: data bytes of one safetensors file.
        force: replace an existing ``out_dir``, which stays in place until the new one is whole.

    Raises:
        OutputExistsError: ``out_dir`` exists, is not empty, and ``force`` is False.
        CheckpointNotFoundError: no complete checkpoint at ``dcp_dir``, or no ``config.json`` in the origin.
        UnknownArchitectureError, UnsupportedModelError: the origin's model has no mapping.
        DamagedCheckpointError: a tensor is missing, does not fit the origin's config, or cannot be read.
    """
    target = parse_dtype(dtype)
    if max_shard_bytes < 1:
        raise ValueError(f"max_shard_bytes must be at least 1, got {max_shard_bytes}")
    out = Path(out_dir)
    if out.exists() and not force and (not out.is_dir() or any(out.iterdir())):
        raise OutputExistsError(f"{out} exists and is not empty; choose another output or allow replacing it (-f)")
    origin = Path(origin_hf_dir)
    weights = WeightMap(model_spec(read_config(origin)))
    source = resolve_checkpoint(dcp_dir)
    reader = DcpReader(source)
    if SCORE in reader and weights.spec.num_labels is None:
        raise DamagedCheckpointError(
            f"{source} has a score layer (a critic), and the origin {origin} is a language model; give a "
            "...ForSequenceClassification directory of the same sizes with one label"
        )
    plan = [planned for mapping in weights.parameters.values() for planned in _plan(reader, weights, mapping, target)]
    shards = plan_shards(plan, max_shard_bytes)
    total = sum(planned.nbytes for planned in plan)
    written = dtype_name(max((planned.dtype for planned in plan), key=[p.dtype for p in plan].count))

    staged = out.absolute().with_name(f".{out.name}.{uuid.uuid4().hex}.partial")
    staged.mkdir(parents=True)
    try:
        names = shard_names(len(shards))
        stream = _stream(reader, weights)
        with byte_progress(f"export {out.name}", total) as advance:
            for name, shard in zip(names, shards, strict=True):
                write_safetensors(staged / name, shard, stream, advance)
        write_index(staged, names, shards)
        copy_companions(origin, staged)
        write_config(origin, staged, written)
        _put_in_place(staged, out)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    logger.info("exported %s to %s: %d tensors, %.1f MB, %s", source, out, len(plan), total / 1e6, written)
    return ExportResult(out, source, len(plan), len(shards), total, written)


def _plan(
    reader: DcpReader, weights: WeightMap, mapping: ParameterMapping, target: torch.dtype | None
) -> Iterator[PlannedTensor]:
    """The Hugging Face tensors of one parameter, after checking that it is stored and fits."""
    key, layer = locate(mapping.name)
    if key not in reader:
        raise DamagedCheckpointError(f"{reader.directory} lacks the tensor {key}, needed for {mapping.hf_names[0]}")
    stored = reader.shape(key)
    expected = mapping.shape if layer is None else (weights.spec.num_layers, *mapping.shape)
    padded = mapping.layout is Layout.VOCAB and stored[0] >= expected[0] and stored[1:] == expected[1:]
    if stored != expected and not padded:
        raise DamagedCheckpointError(
            f"{reader.directory}: {key} has shape {stored}, the origin's config.json asks for {expected}; "
            "give the Hugging Face directory that the run began with"
        )
    dtype = target or reader.dtype(key)
    for hf_name, shape in hf_shapes(weights, mapping):
        yield PlannedTensor(hf_name, shape, dtype)


def _stream(reader: DcpReader, weights: WeightMap) -> Iterator[tuple[str, Tensor]]:
    """All Hugging Face tensors in the plan's order, one stored parameter in memory at a time."""
    for mapping in weights.parameters.values():
        key, layer = locate(mapping.name)
        if layer is None:
            full = reader.read(key, (0,) * len(mapping.shape), mapping.shape)
        else:
            full = reader.read(key, (layer, *(0,) * len(mapping.shape)), (1, *mapping.shape))[0]
        yield from weights.split(mapping.name, full)
        del full


def _put_in_place(staged: Path, out: Path) -> None:
    sync_tree(staged)
    replaced = staged.with_name(staged.name + ".replaced")
    if out.exists():
        os.rename(out, replaced)
    os.rename(staged, out)
    sync_path(out.absolute().parent)
    if replaced.is_dir():
        shutil.rmtree(replaced)
    else:
        replaced.unlink(missing_ok=True)
