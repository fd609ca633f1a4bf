"""One file per source format, registered by name: `(row) -> Record`, and the columns it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from data_prep.errors import DataError
from data_prep.formats import verl
from data_prep.readers import Row
from data_prep.schema import Record


@dataclass(frozen=True, slots=True)
class Format:
    """A source layout. `convert` raises `ValueError` with the reason when a row does not follow it."""

    name: str
    columns: tuple[str, ...]
    convert: Callable[[Row], Record]


FORMATS = {"verl": Format("verl", verl.COLUMNS, verl.convert)}


def get_format(name: str) -> Format:
    """The format of that name.

    Raises:
        DataError: an unknown name; lists the known ones.
    """
    if name not in FORMATS:
        raise DataError(f"unknown dataset format {name!r}; known formats: {', '.join(sorted(FORMATS))}")
    return FORMATS[name]
