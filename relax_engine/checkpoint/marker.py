"""The file that makes an iteration directory complete, `checkpoint.json`, in all its schemas.

    {"schema": 2, "iteration": 100, "files": {"common.pt": 4711, ...}, "optimizer": true}

| schema | |
|---|---|
| 1 | `iteration`, and the size of every file |
| 2 | also `optimizer`: whether a run can be continued from it, or null where that is not known |

Older ones are read as the newest; a newer one is refused, since what it added could be needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from relax_engine.checkpoint.errors import CheckpointSchemaError

SCHEMA = 2
MARKER = "checkpoint.json"


@dataclass(frozen=True, slots=True)
class Marker:
    """What an iteration directory holds: the size of each file, and whether optimizer state is among it."""

    iteration: int
    files: Mapping[str, int]
    optimizer: bool | None = None

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, *, where: object) -> Marker:
        """Read a marker of any known schema; `where` names it in errors.

        Raises:
            ValueError: it is not JSON.
            CheckpointSchemaError: its schema is unknown.
        """
        document = json.loads(text)
        schema = document.pop("schema", None)
        if not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
            raise CheckpointSchemaError(
                f"{where} has schema {schema!r}; this release reads schemas 1 to {SCHEMA}. "
                "Use the release that wrote it, or a newer one."
            )
        for older in range(schema, SCHEMA):
            document = _MIGRATIONS[older](document)
        return cls(**document)

    def missing(self, sizes: Mapping[str, int]) -> str | None:
        """Why files of these sizes are not the whole checkpoint; None when they are."""
        for name, size in self.files.items():
            if sizes.get(name) != size:
                return f"{name} has {sizes.get(name, 'no')} bytes instead of {size}"
        return None


def incompleteness(text: str | bytes, sizes: Mapping[str, int], *, where: object) -> str | None:
    """Why a directory with this marker and files of these sizes is not a complete checkpoint; None when it is.

    Raises:
        CheckpointSchemaError: the marker's schema is unknown.
    """
    try:
        return Marker.from_json(text, where=where).missing(sizes)
    except ValueError as error:
        return f"its {MARKER} is not JSON ({error})"


_MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    1: lambda document: {**document, "optimizer": None}
}
"""From each schema to the next."""
