"""From a checkpoint of adapters to what others load: a PEFT directory, or the base's directory with them merged.

What lives here: both conversions, without a model or process group. What does not: checkpoints of whole weights
(`exporter.py`), the files of a PEFT directory (`peft_directory.py`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from relax_engine.checkpoint.adapters import AdapterMap, AdapterRecord, lora_name, merged
from relax_engine.checkpoint.carried import Carried
from relax_engine.checkpoint.dcp_reader import DcpReader
from relax_engine.checkpoint.dtypes import dtype_name, parse_dtype
from relax_engine.checkpoint.errors import DamagedCheckpointError
from relax_engine.checkpoint.export_result import ExportResult
from relax_engine.checkpoint.files import Place, is_url
from relax_engine.checkpoint.fp8 import DTYPE as FP8_DTYPE
from relax_engine.checkpoint.fp8 import Fp8
from relax_engine.checkpoint.fused_experts import FusedTensor, file_tensors
from relax_engine.checkpoint.hf_directory import copy_companions, shard_names, write_config, write_index
from relax_engine.checkpoint.hf_reader import CONFIG, HfReader, hf_shapes
from relax_engine.checkpoint.mapping import ParameterMapping, WeightMap
from relax_engine.checkpoint.output import Output, writing
from relax_engine.checkpoint.peft_directory import CONFIG as PEFT_CONFIG
from relax_engine.checkpoint.peft_directory import write_peft
from relax_engine.checkpoint.progress import byte_progress
from relax_engine.checkpoint.safetensors_writer import PlannedTensor, plan_shards, write_safetensors

ADAPTER_DIRECTORY = "lora_adapter"
"""Where the directory of a merged model has the adapters by themselves."""

logger = logging.getLogger(__name__)


class AdapterCheckpoint:
    """The adapters of one iteration by Hugging Face name, read when asked for."""

    def __init__(self, source: Place, record: AdapterRecord, base: HfReader) -> None:
        """
        Args:
            base: the weights under the adapters.

        Raises:
            DamagedCheckpointError: an adapter is missing or does not fit the base.
        """
        self.source, self.record, self.base = source, record, base
        self._map = AdapterMap(WeightMap(base.spec), record.shape)
        self._reader = DcpReader(source)
        for mapping in self._map.parameters.values():
            stored = self._reader.shape(mapping.name) if mapping.name in self._reader else None
            if stored != mapping.shape:
                raise DamagedCheckpointError(
                    f"{source}: {mapping.name} has shape {stored}, {base.place} asks for {mapping.shape}; give the "
                    f"model that the run began with ({record.base})"
                )

    def tensors(self) -> dict[str, Tensor]:
        """All of them."""
        return {hf: tensor for name in self._map.parameters for hf, tensor in self._halves(name)}

    def of_layer(self, weight: str) -> dict[str, Tensor]:
        """Both halves of the adapter of a Hugging Face weight; empty where it has none."""
        names = (lora_name(weight, "A"), lora_name(weight, "B"))
        return {name: dict(self._halves(self._map.owner[name].name))[name] for name in names if name in self._map.owner}

    def _halves(self, name: str) -> list[tuple[str, Tensor]]:
        return self._map.split(name, self._reader.read(name))


def export_adapters(adapters: AdapterCheckpoint, out_dir: Place, *, force: bool) -> ExportResult:
    """Write a PEFT directory.

    Raises:
        OutputExistsError: `out_dir` exists, is not empty, and `force` is False.
    """
    tensors = adapters.tensors()
    with writing(out_dir, mark=PEFT_CONFIG, force=force) as output:
        write_peft(output, tensors, adapters.record.shape, str(adapters.base.place))
    logger.info("exported the adapters of %s to %s: %d tensors", adapters.source, out_dir, len(tensors))
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    kind = dtype_name(next(iter(tensors.values())).dtype)
    return ExportResult(_place(out_dir), adapters.source, len(tensors), 1, nbytes, kind)


def export_merged(
    adapters: AdapterCheckpoint,
    out_dir: Place,
    *,
    dtype: str | None,
    fp8: Fp8 | None,
    max_shard_bytes: int,
    force: bool,
) -> ExportResult:
    """Write the base's model directory with the adapters merged, and the adapters by themselves in `lora_adapter`.

    Memory: the largest weight, three times.

    Raises:
        OutputExistsError: `out_dir` exists, is not empty, and `force` is False.
        DamagedCheckpointError: the base lacks a tensor, or cannot be read.
    """
    base, target = adapters.base, parse_dtype(dtype)
    weights = WeightMap(base.spec)
    base.check_against(weights)
    tensors = file_tensors(weights, transposed=base.transposes_experts)
    plan: list[PlannedTensor] = []
    for name, shape, of in _names(weights, tensors):
        if fp8 is not None and fp8.quantises(name, shape):
            scale = PlannedTensor(fp8.scale_name(name), fp8.scale_shape(shape), torch.float32)
            plan += [PlannedTensor(name, shape, FP8_DTYPE), scale]
        else:
            plan.append(PlannedTensor(name, shape, target or base.dtype(of)))
    carried = Carried(base.place, weights)
    plan += carried.plan(target)
    unscaled = weights.owner.keys() | set(carried.names) | {t.name for t in tensors if isinstance(t, FusedTensor)}
    kept = [planned for planned in plan if planned.name in unscaled and planned.dtype is not FP8_DTYPE]
    written = dtype_name(max((p.dtype for p in kept), key=[p.dtype for p in kept].count))
    shards = plan_shards(plan, max_shard_bytes)
    names = shard_names(len(shards))
    total = sum(planned.nbytes for planned in plan)
    stream = itertools.chain(_merged(adapters, weights, tensors, fp8), carried.stream())
    with writing(out_dir, mark=CONFIG, force=force) as output, byte_progress(f"export {out_dir}", total) as advance:
        for name, shard in zip(names, shards, strict=True):
            with output.file(name) as path:
                write_safetensors(path, shard, stream, advance)
        write_index(output, names, shards)
        copy_companions(base.place, output)
        write_peft(_Below(output), adapters.tensors(), adapters.record.shape, str(base.place))
        linear = (p.name.removesuffix(".weight") for p in kept if len(p.shape) == 2 and p.name.endswith(".weight"))
        write_config(base.place, output, written, fp8.config(linear) if fp8 else None)
    logger.info("merged %s into %s at %s: %.1f MB", adapters.source, base.place, out_dir, total / 1e6)
    return ExportResult(_place(out_dir), adapters.source, len(plan), len(shards), total, written)


def _names(
    weights: WeightMap, tensors: Sequence[ParameterMapping | FusedTensor]
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name and shape of what is written, and a tensor of the base that it is made of."""
    for each in tensors:
        if isinstance(each, FusedTensor):
            yield each.name, each.shape, each.experts[0].hf_names[0]
        else:
            yield from ((name, shape, name) for name, shape in hf_shapes(weights, each))


def _merged(
    adapters: AdapterCheckpoint,
    weights: WeightMap,
    tensors: Sequence[ParameterMapping | FusedTensor],
    fp8: Fp8 | None,
) -> Iterator[tuple[str, Iterable[Tensor]]]:
    def with_adapter(name: str) -> Tensor:
        return merged(name, adapters.base.tensor(name), adapters.of_layer(name), adapters.record.shape.scale)

    for each in tensors:
        if isinstance(each, FusedTensor):
            matrices = (weights.merge(one.name, [with_adapter(name) for name in one.hf_names]) for one in each.experts)
            yield each.name, map(each.part, matrices)
            continue
        for name, shape in hf_shapes(weights, each):
            tensor = with_adapter(name)
            if fp8 is not None and fp8.quantises(name, shape):
                quantised, scales = fp8.quantise(tensor)
                yield name, [quantised]
                yield fp8.scale_name(name), [scales]
            else:
                yield name, [tensor]


class _Below:
    """The folder of the adapters in a directory being written."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def file(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """See `Output`."""
        return self._output.file(f"{ADAPTER_DIRECTORY}/{name}")


def _place(out_dir: Place) -> Place:
    return str(out_dir) if is_url(out_dir) else Path(out_dir)
