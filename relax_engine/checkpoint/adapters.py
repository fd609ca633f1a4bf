"""Low-rank adapters of linear layers (LoRA, arXiv 2106.09685): their parameters, and what they add to a weight.

What lives here: which parameters a model's adapters have, in both worlds, and merging them. What does not: computing
with adapters (`relax_engine.backends.megatron.adapters`), PEFT's files (`peft_directory.py`).

The adapter of a linear layer adds `scale * B A x` to `W x`, with A `[rank, in]` and B `[out, rank]`. A fused layer
holds several of Hugging Face's, each of which has an A and a B of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor

from relax_engine.checkpoint.errors import DamagedCheckpointError
from relax_engine.checkpoint.files import Place, below, files_at, read_bytes
from relax_engine.checkpoint.mapping import Layout, ParameterMapping, WeightMap, WeightMappingError

RECORD = "adapters.json"
"""The file that tells a checkpoint of adapters from one of whole weights."""
_WEIGHT = ".weight"


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """Which layers have adapters, and of what size.

    Attributes:
        rank: rows of A.
        alpha: numerator of the scale.
        targets: names of linear layers as `--lora-target-modules` has them.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]

    @property
    def scale(self) -> float:
        """The factor of `B A x`."""
        return self.alpha / self.rank

    def adapts(self, mapping: ParameterMapping) -> bool:
        """Whether the layer of this weight has an adapter."""
        name = mapping.name
        return name.endswith(_WEIGHT) and name.startswith("decoder.") and _layer(name) in self.targets


class AdapterMap(WeightMap):
    """The adapters of one model as parameters of their own, `X.adapter.a` and `X.adapter.b` of a layer X.

    A layer that is cut by rows has the A of its parts, `[parts, rank, in]`, on every rank, and B cut as its weight:
    as `[2, out / 2, rank]` where a rank has a slice of gate and of up. One that is cut by columns has A cut so, and B
    `[out, rank]` on every rank. Hugging Face's names are those of the weights, with `lora_A` and `lora_B`.
    """

    def __init__(self, weights: WeightMap, shape: AdapterShape) -> None:
        self.spec = weights.spec
        self.shape = shape
        self.adapted = {base.name: base for base in weights.parameters.values() if shape.adapts(base)}
        absent = set(shape.targets) - {_layer(name) for name in self.adapted}
        if absent:
            raise WeightMappingError(
                f"--lora-target-modules: {self.spec.architecture} has no layer {', '.join(sorted(absent))}"
            )
        self.parameters = {part.name: part for base in self.adapted.values() for part in _pair(base, shape.rank)}
        self.owner = {hf_name: part for part in self.parameters.values() for hf_name in part.hf_names}

    def merge(self, name: str, parts: Sequence[Tensor]) -> Tensor:
        """See `WeightMap.merge`; the parts of stacked parameters are not joined."""
        if not self._stacked(name):
            return super().merge(name, parts)
        if self._halved(name):
            parts = parts[0].chunk(2)
        expected = self.parameters[name].shape
        if any(part.shape != expected[1:] for part in parts):
            shapes = [tuple(part.shape) for part in parts]
            raise WeightMappingError(f"{name} needs {expected[0]} parts of shape {expected[1:]}, there are {shapes}")
        return torch.stack(list(parts))

    def split(self, name: str, full: Tensor) -> list[tuple[str, Tensor]]:
        """See `WeightMap.split`."""
        if self._halved(name):
            full = full.flatten(0, 1)[None]
        if self._stacked(name):
            return list(zip(self.parameters[name].hf_names, full.unbind(), strict=True))
        return super().split(name, full)

    def part_of_row(self, name: str) -> Tensor:
        """Of a B that is not stacked, the part that each row belongs to: `[out, rank]`, the same along a row."""
        shell = torch.empty(self.parameters[name].shape, device="meta")
        return self.merge(name, [torch.full(part.shape, i) for i, (_, part) in enumerate(self.split(name, shell))])

    def _halved(self, name: str) -> bool:
        """Whether it is the B of gate and up that are one layer in Hugging Face as well."""
        mapping = self.parameters[name]
        return self._stacked(name) and len(mapping.hf_names) < mapping.shape[0]

    def _stacked(self, name: str) -> bool:
        return len(self.parameters[name].shape) == 3


def _layer(weight: str) -> str:
    return weight.removesuffix(_WEIGHT).rpartition(".")[2]


def adapter_names(weight: str) -> tuple[str, str]:
    """Names of A and B of the layer with the Megatron weight `weight`."""
    layer = weight.removesuffix(_WEIGHT)
    return f"{layer}.adapter.a", f"{layer}.adapter.b"


def _pair(base: ParameterMapping, rank: int) -> Iterator[ParameterMapping]:
    rows, columns = base.shape
    parts = len(base.hf_names)
    name_a, name_b = adapter_names(base.name)
    hf_a, hf_b = (tuple(lora_name(name, half) for name in base.hf_names) for half in ("A", "B"))
    if base.layout is Layout.COLUMNS:
        yield ParameterMapping(name_a, hf_a, Layout.COLUMNS, (rank, columns), base.expert)
        yield ParameterMapping(name_b, hf_b, Layout.REPLICATED, (rows, rank), base.expert)
        return
    yield ParameterMapping(name_a, hf_a, Layout.REPLICATED, (parts, rank, columns), base.expert)
    if base.layout is Layout.GATE_UP:
        yield ParameterMapping(name_b, hf_b, Layout.COLUMNS, (2, rows // 2, rank), base.expert)
    else:
        yield ParameterMapping(name_b, hf_b, base.layout, (rows, rank), base.expert)


def lora_name(weight: str, half: Literal["A", "B"]) -> str:
    """The Hugging Face name of a half of the adapter of `weight`, e.g. `....q_proj.lora_A.weight`."""
    return f"{weight.removesuffix(_WEIGHT)}.lora_{half}{_WEIGHT}"


def with_adapters(
    weights: Iterable[tuple[str, Tensor]], adapters: Mapping[str, Tensor], scale: float
) -> Iterator[tuple[str, Tensor]]:
    """The Hugging Face tensors `weights` with `scale * B A` added where `adapters` has an A and a B."""
    for name, tensor in weights:
        yield name, merged(name, tensor, adapters, scale)


def merged(name: str, weight: Tensor, adapters: Mapping[str, Tensor], scale: float) -> Tensor:
    """The weight `name` with its adapter, if it has one, added in float32."""
    a = adapters.get(lora_name(name, "A"))
    if a is None:
        return weight
    b = adapters[lora_name(name, "B")]
    return weight.float().add(b.float() @ a.float(), alpha=scale).to(weight.dtype)


@dataclass(frozen=True, slots=True)
class AdapterRecord:
    """What a checkpoint says about the adapters in it; `base` is where the weights under them were loaded from."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    base: str

    @classmethod
    def of(cls, shape: AdapterShape, base: str) -> AdapterRecord:
        """The record of adapters of this shape on the weights at `base`."""
        return cls(shape.rank, shape.alpha, shape.targets, base)

    @property
    def shape(self) -> AdapterShape:
        """The shape of the adapters."""
        return AdapterShape(self.rank, self.alpha, self.targets)

    def to_json(self) -> str:
        """The content of `adapters.json`."""
        return json.dumps(asdict(self), indent=2) + "\n"


def read_record(checkpoint: Place) -> AdapterRecord | None:
    """What the checkpoint's `adapters.json` says; None for a checkpoint of whole weights.

    Raises:
        DamagedCheckpointError: the file is not such a record.
    """
    files = files_at(checkpoint)
    size = files.sizes().get(RECORD)
    if size is None:
        return None
    try:
        found = json.loads(read_bytes(files, RECORD, size))
        return AdapterRecord(int(found["rank"]), float(found["alpha"]), tuple(found["targets"]), str(found["base"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpointError(f"{below(checkpoint, RECORD)} cannot be read: {error!r}") from error
