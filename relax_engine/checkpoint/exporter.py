"""From a Megatron distributed checkpoint to a Hugging Face directory, tensor by tensor.

Blocks of rows are read from where a parameter is stored and appended to the Hugging Face tensor they belong to.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from relax_engine.checkpoint.adapter_exporter import AdapterCheckpoint, export_adapters, export_merged
from relax_engine.checkpoint.adapters import read_record
from relax_engine.checkpoint.carried import Carried
from relax_engine.checkpoint.dcp_layout import locate
from relax_engine.checkpoint.dcp_reader import DcpReader
from relax_engine.checkpoint.dtypes import dtype_name, parse_dtype
from relax_engine.checkpoint.errors import CheckpointNotFoundError, DamagedCheckpointError, UnsupportedModelError
from relax_engine.checkpoint.export_result import ExportResult
from relax_engine.checkpoint.families import model_spec
from relax_engine.checkpoint.files import Extent, Place, is_url
from relax_engine.checkpoint.fp8 import DTYPE as FP8_DTYPE
from relax_engine.checkpoint.fp8 import Fp8
from relax_engine.checkpoint.fused_experts import FusedTensor, file_tensors
from relax_engine.checkpoint.hf_directory import copy_companions, shard_names, write_config, write_index
from relax_engine.checkpoint.hf_reader import CONFIG, HfReader, hf_shapes, read_config
from relax_engine.checkpoint.mapping import SCORE, Layout, ParameterMapping, WeightMap
from relax_engine.checkpoint.output import refuse_existing, writing
from relax_engine.checkpoint.progress import byte_progress
from relax_engine.checkpoint.resolve import resolve_checkpoint
from relax_engine.checkpoint.safetensors_writer import BLOCK_BYTES, PlannedTensor, plan_shards, write_safetensors

DEFAULT_SHARD_BYTES = 5 * 2**30

logger = logging.getLogger(__name__)


def export_checkpoint(
    dcp_dir: Place,
    out_dir: Place,
    *,
    origin_hf_dir: Place,
    dtype: str | None = None,
    fp8: Fp8 | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    force: bool = False,
    adapters_only: bool = False,
) -> ExportResult:
    """Convert one iteration directory, or the latest complete one of a run root, to Hugging Face.

    All places may be directories or URLs of object storage (`s3://bucket/model`). Memory: a block of a few megabytes;
    with `fp8` three times the largest weight. Local disk for a remote output: one file of weights.

    Args:
        origin_hf_dir: the model the run began with; gives config, tokenizer, chat template, the weights under adapters,
            and the layers for the prediction of further tokens as they are, where it has such: training leaves them
            out.
        dtype: float32, bfloat16 or float16; None keeps the stored types.
        fp8: quantise the weights of linear layers so; `dtype` is then of the others.
        max_shard_bytes: data bytes of one safetensors file.
        force: replace what is at ``out_dir``. A directory stays in place until the new one is whole.
        adapters_only: of a checkpoint of adapters, write a PEFT directory; otherwise they are merged into the origin.

    Raises:
        OutputExistsError: ``out_dir`` exists, is not empty, and ``force`` is False.
        CheckpointNotFoundError: no complete checkpoint at ``dcp_dir``, or no ``config.json`` in the origin.
        UnknownArchitectureError, UnsupportedModelError: the origin's model has no mapping.
        DamagedCheckpointError: a tensor is missing, does not fit the origin's config, or cannot be read.
    """
    target = parse_dtype(dtype)
    if max_shard_bytes < 1:
        raise ValueError(f"max_shard_bytes must be at least 1, got {max_shard_bytes}")
    refuse_existing(out_dir, force=force)
    weights = WeightMap(model_spec(read_config(origin_hf_dir)))
    if fp8 is not None and weights.spec.experts is not None and weights.spec.experts.fused_files:
        raise UnsupportedModelError(f"{weights.spec.architecture}: experts in one tensor cannot be exported as FP8")
    source = resolve_checkpoint(dcp_dir)
    record = read_record(source)
    if record is not None:
        adapters = AdapterCheckpoint(source, record, HfReader(origin_hf_dir))
        if adapters_only:
            return export_adapters(adapters, out_dir, force=force)
        return export_merged(adapters, out_dir, dtype=dtype, fp8=fp8, max_shard_bytes=max_shard_bytes, force=force)
    if adapters_only:
        raise ValueError(f"{source} holds whole weights, no adapters: leave --adapters-only out")
    reader = DcpReader(source)
    if SCORE in reader and weights.spec.num_labels is None:
        raise DamagedCheckpointError(
            f"{source} has a score layer (a critic), and the origin {origin_hf_dir} is a language model; give a "
            "...ForSequenceClassification directory of the same sizes with one label"
        )
    tensors = file_tensors(weights, transposed=_transposes_experts(origin_hf_dir, weights))
    plan = [planned for each in tensors for planned in _plan(reader, weights, each, target, fp8)]
    carried = Carried(origin_hf_dir, weights)
    plan += carried.plan(target)
    shards = plan_shards(plan, max_shard_bytes)
    total = sum(planned.nbytes for planned in plan)
    unscaled = weights.owner.keys() | set(carried.names) | {t.name for t in tensors if isinstance(t, FusedTensor)}
    kept = [planned for planned in plan if planned.name in unscaled and planned.dtype is not FP8_DTYPE]
    written = dtype_name(max((p.dtype for p in kept), key=[p.dtype for p in kept].count))
    names = shard_names(len(shards))
    stream = itertools.chain(_stream(reader, weights, tensors, target, fp8), carried.stream())
    with writing(out_dir, mark=CONFIG, force=force) as output, byte_progress(f"export {out_dir}", total) as advance:
        for name, shard in zip(names, shards, strict=True):
            with output.file(name) as path:
                write_safetensors(path, shard, stream, advance)
        write_index(output, names, shards)
        copy_companions(origin_hf_dir, output)
        linear = (p.name.removesuffix(".weight") for p in kept if len(p.shape) == 2 and p.name.endswith(".weight"))
        write_config(origin_hf_dir, output, written, fp8.config(linear) if fp8 else None)
    logger.info("exported %s to %s: %d tensors, %.1f MB, %s", source, out_dir, len(plan), total / 1e6, written)
    out = str(out_dir) if is_url(out_dir) else Path(out_dir)
    return ExportResult(out, source, len(plan), len(shards), total, written)


def _transposes_experts(origin: Place, weights: WeightMap) -> bool:
    """How the origin's files hold experts as one tensor; without files, as published models do."""
    if weights.spec.experts is None or not weights.spec.experts.fused_files:
        return False
    try:
        return HfReader(origin).transposes_experts
    except CheckpointNotFoundError:
        return True


def _plan(
    reader: DcpReader,
    weights: WeightMap,
    wanted: ParameterMapping | FusedTensor,
    target: torch.dtype | None,
    fp8: Fp8 | None,
) -> Iterator[PlannedTensor]:
    """The Hugging Face tensors of one parameter, or that of a layer's experts, after checking that they are stored."""
    if isinstance(wanted, ParameterMapping):
        dtype = _stored_dtype(reader, weights, wanted, target)
        for hf_name, shape in hf_shapes(weights, wanted):
            if fp8 is not None and fp8.quantises(hf_name, shape):
                yield PlannedTensor(hf_name, shape, FP8_DTYPE)
                yield PlannedTensor(fp8.scale_name(hf_name), fp8.scale_shape(shape), torch.float32)
            else:
                yield PlannedTensor(hf_name, shape, dtype)
        return
    dtypes = [_stored_dtype(reader, weights, mapping, target) for mapping in wanted.experts]
    yield PlannedTensor(wanted.name, wanted.shape, dtypes[0])


def _stored_dtype(
    reader: DcpReader, weights: WeightMap, mapping: ParameterMapping, target: torch.dtype | None
) -> torch.dtype:
    """The type that a parameter is written in, after checking that it is stored and fits."""
    key, _, sizes = locate(mapping.name, weights.spec)
    if key not in reader:
        raise DamagedCheckpointError(f"{reader.place} lacks the tensor {key}, needed for {mapping.hf_names[0]}")
    stored = reader.shape(key)
    expected = (*sizes, *mapping.shape)
    padded = mapping.layout is Layout.VOCAB and stored[0] >= expected[0] and stored[1:] == expected[1:]
    if stored != expected and not padded:
        raise DamagedCheckpointError(
            f"{reader.place}: {key} has shape {stored}, the origin's config.json asks for {expected}; "
            "give the Hugging Face directory that the run began with"
        )
    return reader.dtype(key) if target is None or mapping.wide else target


def _stream(
    reader: DcpReader,
    weights: WeightMap,
    tensors: Sequence[ParameterMapping | FusedTensor],
    target: torch.dtype | None,
    fp8: Fp8 | None,
) -> Iterator[tuple[str, Iterable[Tensor | Extent]]]:
    """All Hugging Face tensors in the plan's order, each in parts.

    Where a tensor is a selection of the parameter's rows, as all are that come of fusing projections, only these are
    read, block by block; which they are is found by splitting the row numbers in the tensor's place.
    """
    for mapping in tensors:
        if isinstance(mapping, FusedTensor):
            yield mapping.name, _of_experts(reader, weights, mapping)
            continue
        key, above, _ = locate(mapping.name, weights.spec)
        numbers = torch.arange(mapping.shape[0]).view(-1, *(1,) * (len(mapping.shape) - 1))
        same = mapping.wide or target in (None, reader.dtype(key))
        as_stored = same and sys.platform == "linux"  # the kernel copies files
        for (hf_name, shape), (_, rows) in zip(
            hf_shapes(weights, mapping), weights.split(mapping.name, numbers), strict=True
        ):
            runs = _runs(rows.flatten())
            if fp8 is not None and fp8.quantises(hf_name, shape):
                parts = (part for run in runs for part in _blocks(reader, key, above, run, mapping.shape[1:]))
                quantised, scales = fp8.quantise(torch.cat(list(parts)))
                yield hf_name, [quantised]
                yield fp8.scale_name(hf_name), [scales]
            else:
                read = partial(_extents if as_stored else _blocks, reader, key, above, trailing=mapping.shape[1:])
                yield hf_name, itertools.chain.from_iterable(read(run) for run in runs)


def _of_experts(reader: DcpReader, weights: WeightMap, tensor: FusedTensor) -> Iterator[Tensor]:
    """The matrix of one expert after another."""
    for mapping in tensor.experts:
        key, above, _ = locate(mapping.name, weights.spec)
        rows, columns = mapping.shape
        yield tensor.part(torch.cat(list(_blocks(reader, key, above, (0, rows), (columns,)))))


def _blocks(
    reader: DcpReader, key: str, above: tuple[int, ...], run: tuple[int, int], trailing: Sequence[int]
) -> Iterator[Tensor]:
    return reader.read_rows(key, above, *run, trailing, BLOCK_BYTES)


def _extents(
    reader: DcpReader, key: str, above: tuple[int, ...], run: tuple[int, int], trailing: Sequence[int]
) -> Iterable[Tensor | Extent]:
    extent = reader.extent(key, above, *run, trailing)
    return _blocks(reader, key, above, run, trailing) if extent is None else [extent]


def _runs(rows: Tensor) -> list[tuple[int, int]]:
    """Ascending runs of row numbers, as `(first, count)`."""
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), (rows.diff() != 1).nonzero().flatten() + 1])
    counts = torch.cat([starts, torch.tensor([len(rows)])]).diff()
    return list(zip(rows[starts].tolist(), counts.tolist(), strict=True))
