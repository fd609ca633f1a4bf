"""Reading a Hugging Face model directory: its architecture, and single tensors by name.

Weights are safetensors, one file or several with an index. Tensors are mapped from disk when asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from relax_engine.checkpoint.errors import CheckpointNotFoundError, DamagedCheckpointError
from relax_engine.checkpoint.families import ModelSpec, model_spec
from relax_engine.checkpoint.mapping import ParameterMapping, WeightMap

INDEX = "model.safetensors.index.json"
_FLOATS = ("F32", "BF16", "F16")
_SHOWN = 8


def read_config(directory: Path) -> dict[str, Any]:
    """The directory's ``config.json``.

    Raises:
        CheckpointNotFoundError: there is none.
        DamagedCheckpointError: it is not JSON.
    """
    path = directory / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointNotFoundError(
            f"{directory} has no config.json; give the directory of a Hugging Face model (config.json, *.safetensors)"
        ) from None
    except json.JSONDecodeError as error:
        raise DamagedCheckpointError(f"{path} is not JSON: {error}") from error
    return config


class HfReader:
    """One model directory. Opening it checks every file's header; no weights are read until ``tensor``."""

    def __init__(self, directory: Path | str) -> None:
        """Open the directory.

        Raises:
            CheckpointNotFoundError: no ``config.json`` or no safetensors.
            UnknownArchitectureError: the architecture has no mapping.
            DamagedCheckpointError: a shard named by the index is missing, or a file is truncated.
        """
        self.directory = Path(directory)
        self.spec: ModelSpec = model_spec(read_config(self.directory))
        self.file_bytes = 0
        self._handles: dict[str, Any] = {}
        for path in self._weight_files():
            handle = _open(path)
            self._handles.update(dict.fromkeys(handle.keys(), handle))
            self.file_bytes += path.stat().st_size
        self._check_index()

    def names(self) -> Iterable[str]:
        """Names of all stored tensors."""
        return self._handles.keys()

    def tensor(self, name: str) -> Tensor:
        """One tensor, from disk."""
        tensor: Tensor = self._handles[name].get_tensor(name)
        return tensor

    def check_against(self, weights: WeightMap) -> None:
        """Check that the tensors are exactly those of the model, in shape and as plain floating point.

        A language model may stand in for a value model: it lacks the score layer (`lacks`).

        Raises:
            DamagedCheckpointError: names the ones that are not.
        """
        absent = self.lacks(weights)
        missing = [name for name in weights.hf_names() if name not in self._handles and name not in absent]
        extra = [name for name in self._handles if name not in weights.owner and not weights.ignores(name)]
        for problem, names in (("lacks", missing), ("has tensors that its config.json does not describe:", extra)):
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                raise DamagedCheckpointError(f"{self.directory} {problem} {', '.join(names[:_SHOWN])}{more}")
        for mapping in weights.parameters.values():
            for name, expected in hf_shapes(weights, mapping):
                if name not in absent:
                    self._check_tensor(name, expected)

    def lacks(self, weights: WeightMap) -> list[str]:
        """Tensors of the model that this directory's architecture does not have."""
        return [name for name in weights.hf_names() if weights.may_lack(name, self.spec)]

    def _check_tensor(self, name: str, expected: tuple[int, ...]) -> None:
        stored = self._handles[name].get_slice(name)
        if tuple(stored.get_shape()) != expected:
            raise DamagedCheckpointError(
                f"{self.directory}: {name} has shape {tuple(stored.get_shape())}, its config.json asks for {expected}"
            )
        if stored.get_dtype() not in _FLOATS:
            raise DamagedCheckpointError(
                f"{self.directory}: {name} is stored as {stored.get_dtype()}; "
                f"dequantise it to one of {', '.join(_FLOATS)}"
            )

    def _weight_files(self) -> list[Path]:
        if (self.directory / INDEX).is_file():
            files = sorted({self.directory / name for name in self._index().values()})
            for path in files:
                if not path.is_file():
                    raise DamagedCheckpointError(f"{self.directory / INDEX} names {path.name}, which is missing")
            return files
        files = sorted(self.directory.glob("*.safetensors"))
        if not files:
            raise CheckpointNotFoundError(f"{self.directory} has no *.safetensors; convert its weights to safetensors")
        return files

    def _index(self) -> dict[str, str]:
        try:
            weight_map: dict[str, str] = json.loads((self.directory / INDEX).read_text())["weight_map"]
        except (json.JSONDecodeError, KeyError) as error:
            raise DamagedCheckpointError(f"{self.directory / INDEX} is not a weight index: {error!r}") from error
        return weight_map

    def _check_index(self) -> None:
        if (self.directory / INDEX).is_file():
            absent = [name for name in self._index() if name not in self._handles]
            if absent:
                raise DamagedCheckpointError(f"{self.directory / INDEX} lists {absent[0]}, which no shard holds")


def hf_shapes(weights: WeightMap, mapping: ParameterMapping) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the Hugging Face tensors a parameter is made of."""
    shell = torch.empty(mapping.shape, device="meta")
    return [(name, tuple(part.shape)) for name, part in weights.split(mapping.name, shell)]


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise DamagedCheckpointError(f"{path} is truncated or not safetensors: {error}") from error
