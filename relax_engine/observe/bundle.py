"""The replay bundle of a run: its configuration, the samples of every rollout, the columns of every step.

What lives here: the files. What does not: recomputing what is in them (`relax_engine.core.replay`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relax_engine.errors import RelaxError
from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.types import Sample, SampleGroup


class BundleError(RelaxError):
    """A recorded file is missing or is not what it should be."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One optimizer step: the rows it was trained on, in order, and what it reported."""

    batch: ColumnBatch
    metrics: Mapping[str, float]


def write_samples(template: str, rollout_id: int, groups: Sequence[SampleGroup]) -> Path:
    """Write the groups of a rollout, a line each; metadata that JSON cannot hold is an error naming the group."""
    lines = []
    for group in groups:
        try:
            lines.append(json.dumps([sample.to_dict() for sample in group]))
        except TypeError as error:
            raise BundleError(
                f"group {group[0].group_index} of rollout {rollout_id} cannot be saved: {error}"
            ) from error
    return _write(template, rollout_id, ("\n".join(lines) + "\n").encode())


def read_samples(template: str, rollout_id: int) -> list[SampleGroup]:
    """What `write_samples` wrote.

    Raises:
        BundleError: there is no such file, or a line is no group.
    """
    path = _path(template, rollout_id)
    if not path.is_file():
        raise BundleError(f"there is no recorded rollout {rollout_id}: {path} does not exist")
    groups = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            groups.append([Sample.from_dict(sample) for sample in json.loads(line)])
        except (ValueError, TypeError) as error:
            raise BundleError(f"{path}, line {number}: {error}") from error
    return groups


def write_steps(template: str, rollout_id: int, steps: Sequence[RecordedStep]) -> Path:
    """Write the steps that were trained on a rollout."""
    arrays: dict[str, np.ndarray] = {"steps": np.array(len(steps))}
    for number, step in enumerate(steps):
        for name, column in step.batch.items():
            if column.dtype == object:
                arrays |= _objects(f"{number}/objects/{name}", column)
                continue
            arrays[f"{number}/values/{name}"] = column.values
            if column.offsets is not None:
                arrays[f"{number}/offsets/{name}"] = column.offsets
        arrays[f"{number}/metrics"] = np.array(json.dumps(dict(step.metrics)))
    path = _path(template, rollout_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp.npz")
    np.savez(temporary, allow_pickle=False, **arrays)
    os.replace(temporary, path)
    return path


def read_steps(template: str, rollout_id: int) -> list[RecordedStep]:
    """What `write_steps` wrote.

    Raises:
        BundleError: there is no such file.
    """
    path = _path(template, rollout_id)
    if not path.is_file():
        raise BundleError(f"there are no recorded steps of rollout {rollout_id}: {path} does not exist")
    steps = []
    with np.load(path, allow_pickle=False) as file:
        for number in range(int(file["steps"])):
            prefix = f"{number}/values/"
            columns = {
                name.removeprefix(prefix): Column(file[name], _offsets(file, f"{number}/offsets/{name[len(prefix) :]}"))
                for name in file.files
                if name.startswith(prefix)
            }
            columns |= _read_objects(file, f"{number}/objects/")
            steps.append(RecordedStep(ColumnBatch(columns), json.loads(str(file[f"{number}/metrics"]))))
    return steps


def recorded_rollouts(template: str) -> list[int]:
    """Rollout ids for which a file of this template exists, ascending."""
    before, _, after = _path_text(template).partition("{rollout_id}")
    folder = Path(before).parent if not before.endswith("/") else Path(before)
    names = (str(path) for path in folder.iterdir()) if folder.is_dir() else ()
    middles = [name[len(before) : len(name) - len(after)] for name in names if _matches(name, before, after)]
    return sorted(int(text) for text in middles if text.isdigit())


def _matches(name: str, before: str, after: str) -> bool:
    return name.startswith(before) and name.endswith(after) and len(name) > len(before) + len(after)


def _objects(prefix: str, column: Column) -> dict[str, np.ndarray]:
    """The arrays of a column whose rows are dictionaries of arrays, or None."""
    arrays = {prefix: np.array(len(column))}
    for row, value in enumerate(column.values):
        arrays |= {f"{prefix}/{row}/{name}": np.asarray(array) for name, array in (value or {}).items()}
    return arrays


def _read_objects(file: Any, prefix: str) -> dict[str, Column]:
    """The columns that `_objects` wrote."""
    rows: dict[str, list[dict[str, np.ndarray] | None]] = {}
    for name in (name for name in file.files if name.startswith(prefix)):
        column, *place = name.removeprefix(prefix).split("/")
        if place:
            row = int(place[0])
            rows[column][row] = (rows[column][row] or {}) | {place[1]: file[name]}
        else:
            rows[column] = [None] * int(file[name])
    return {name: Column.objects(values) for name, values in rows.items()}


def _offsets(file: Any, name: str) -> np.ndarray | None:
    return file[name] if name in file.files else None


def _path_text(template: str) -> str:
    return os.path.normpath(template)


def _path(template: str, rollout_id: int) -> Path:
    return Path(_path_text(template).replace("{rollout_id}", str(rollout_id)))


def _write(template: str, rollout_id: int, data: bytes) -> Path:
    path = _path(template, rollout_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
    return path
