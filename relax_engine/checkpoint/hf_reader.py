"""Reading a Hugging Face model directory: its architecture, and single tensors by name.

Weights are safetensors, one file or several with an index. Tensors are read when asked for. Experts that files hold as
one tensor are tensors of their own here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relax_engine.checkpoint.errors import CheckpointNotFoundError, DamagedCheckpointError, UnsupportedModelError
from relax_engine.checkpoint.families import model_spec
from relax_engine.checkpoint.files import Place, below, files_at, read_bytes
from relax_engine.checkpoint.fused_experts import ExpertWeight, weights_inside
from relax_engine.checkpoint.mapping import ParameterMapping, WeightMap
from relax_engine.checkpoint.model_spec import ModelSpec
from relax_engine.checkpoint.saved_tensor import bytes_of

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
_FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_SHOWN = 8
_SCALES = (".weight_scale", ".weight_scale_inv", ".qzeros", ".scales")


def read_config(place: Place) -> dict[str, Any]:
    """The ``config.json`` of a directory or URL.

    Raises:
        CheckpointNotFoundError: there is none.
        DamagedCheckpointError: it is not JSON.
    """
    files = files_at(place)
    size = files.sizes().get(CONFIG)
    if size is None:
        raise CheckpointNotFoundError(
            f"{place} has no config.json; give the directory of a Hugging Face model (config.json, *.safetensors)"
        )
    try:
        config: dict[str, Any] = json.loads(read_bytes(files, CONFIG, size))
    except json.JSONDecodeError as error:
        raise DamagedCheckpointError(f"{below(place, CONFIG)} is not JSON: {error}") from error
    return config


class HfReader:
    """One model directory or URL. Opening it checks every file's header; no weights are read until ``tensor``."""

    def __init__(self, place: Place) -> None:
        """Open the directory.

        Raises:
            CheckpointNotFoundError: no ``config.json`` or no safetensors.
            UnknownArchitectureError: the architecture has no mapping.
            DamagedCheckpointError: a shard named by the index is missing, or a file is truncated.
        """
        self.place = place
        self.spec: ModelSpec = model_spec(read_config(place))
        self._files = files_at(place)
        self._sizes = self._files.sizes()
        self._tensors: dict[str, _Stored] = {}
        names = self._weight_files()
        self.file_bytes = sum(self._sizes[name] for name in names)
        for name in names:
            self._tensors |= self._read_header(name)
        self._check_index()
        self._tensors = dict(
            each for name, stored in self._tensors.items() for each in _separated(name, stored, self.spec)
        )

    def names(self) -> Iterable[str]:
        """Names of all stored tensors."""
        return self._tensors.keys()

    def tensor(self, name: str) -> Tensor:
        """One tensor, from disk."""
        stored = self._tensors[name]
        inside = stored.inside
        tensor = torch.empty(stored.shape if inside is None else inside.block, dtype=_FLOATS[stored.dtype])
        self._files.read_into(stored.file, stored.start, bytes_of(tensor))
        return tensor if inside is None else inside.take(tensor)

    @property
    def transposes_experts(self) -> bool:
        """Whether files that hold experts as one tensor have them input by output, as published ones do."""
        inside = [stored.inside for stored in self._tensors.values() if stored.inside is not None]
        return all(weight.transposed for weight in inside)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a stored tensor."""
        return self._tensors[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """The type of a stored tensor.

        Raises:
            DamagedCheckpointError: not plain floating point.
        """
        self._check_float(name)
        return _FLOATS[self._tensors[name].dtype]

    def check_against(self, weights: WeightMap) -> None:
        """Check that the tensors are exactly those of the model, in shape and as plain floating point.

        A language model may stand in for a value model: it lacks the score layer (`lacks`).

        Raises:
            UnsupportedModelError: the model is quantised.
            DamagedCheckpointError: names the ones that are not.
        """
        absent = self.lacks(weights)
        missing = [name for name in weights.hf_names() if name not in self._tensors and name not in absent]
        extra = [name for name in self._tensors if name not in weights.owner and not weights.ignores(name)]
        scale = next((name for name in extra if name.endswith(_SCALES)), None)
        if scale is not None:
            raise UnsupportedModelError(
                f"{self.place} has quantised weights ({scale}); dequantise them to bfloat16 first"
            )
        for problem, names in (("lacks", missing), ("has tensors that its config.json does not describe:", extra)):
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                raise DamagedCheckpointError(f"{self.place} {problem} {', '.join(names[:_SHOWN])}{more}")
        for mapping in weights.parameters.values():
            for name, expected in hf_shapes(weights, mapping):
                if name not in absent:
                    self._check_tensor(name, expected)

    def lacks(self, weights: WeightMap) -> list[str]:
        """Tensors of the model that this directory's architecture does not have."""
        return [name for name in weights.hf_names() if weights.may_lack(name, self.spec)]

    def _check_tensor(self, name: str, expected: tuple[int, ...]) -> None:
        stored = self._tensors[name]
        if stored.shape != expected:
            raise DamagedCheckpointError(
                f"{self.place}: {name} has shape {stored.shape}, its config.json asks for {expected}"
            )
        self._check_float(name)

    def _check_float(self, name: str) -> None:
        stored = self._tensors[name]
        if stored.dtype not in _FLOATS:
            raise DamagedCheckpointError(
                f"{self.place}: {name} is stored as {stored.dtype}; dequantise it to one of {', '.join(_FLOATS)}"
            )

    def _weight_files(self) -> list[str]:
        if INDEX in self._sizes:
            files = sorted(set(self._index().values()))
            for name in files:
                if name not in self._sizes:
                    raise DamagedCheckpointError(f"{below(self.place, INDEX)} names {name}, which is missing")
            return files
        files = [name for name in self._sizes if name.endswith(".safetensors") and "/" not in name]
        if not files:
            raise CheckpointNotFoundError(f"{self.place} has no *.safetensors; convert its weights to safetensors")
        return files

    def _read_header(self, name: str) -> dict[str, _Stored]:
        """The tensors of one file (https://github.com/huggingface/safetensors#format)."""
        size = self._sizes[name]
        try:
            length = int.from_bytes(read_bytes(self._files, name, 8), "little")
            if length > size:
                raise ValueError(f"a header of {length} bytes in a file of {size}")
            header = json.loads(read_bytes(self._files, name, length, offset=8))
            header.pop("__metadata__", None)
            found = {
                tensor: _Stored(name, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
                for tensor, entry in header.items()
            }
            end = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
            if end != size:
                raise ValueError(f"its header asks for {end} bytes, it has {size}")
        except (ValueError, KeyError, TypeError, DamagedCheckpointError) as error:
            path = below(self.place, name)
            raise DamagedCheckpointError(f"{path} is truncated or not safetensors: {error}") from error
        return found

    def _index(self) -> dict[str, str]:
        try:
            text = read_bytes(self._files, INDEX, self._sizes[INDEX])
            weight_map: dict[str, str] = json.loads(text)["weight_map"]
        except (json.JSONDecodeError, KeyError) as error:
            raise DamagedCheckpointError(f"{below(self.place, INDEX)} is not a weight index: {error!r}") from error
        return weight_map

    def _check_index(self) -> None:
        if INDEX in self._sizes:
            absent = [name for name in self._index() if name not in self._tensors]
            if absent:
                raise DamagedCheckpointError(f"{below(self.place, INDEX)} lists {absent[0]}, which no shard holds")


class _Stored(NamedTuple):
    """A tensor of a safetensors file: its type as named there, its first byte, and what it is of the bytes there."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    inside: ExpertWeight | None = None


def _separated(name: str, stored: _Stored, spec: ModelSpec) -> Iterable[tuple[str, _Stored]]:
    """A tensor of a file, or the experts in it; quantised ones stay together, and are refused by name."""
    inside = weights_inside(name, stored.shape, spec) if stored.dtype in _FLOATS else []
    if not inside:
        yield name, stored
    for weight in inside:
        start = stored.start + weight.offset * _FLOATS[stored.dtype].itemsize
        yield weight.name, stored._replace(shape=weight.shape, start=start, inside=weight)


def hf_shapes(weights: WeightMap, mapping: ParameterMapping) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the Hugging Face tensors a parameter is made of."""
    shell = torch.empty(mapping.shape, device="meta")
    return [(name, tuple(part.shape)) for name, part in weights.split(mapping.name, shell)]
