"""Typed access to the fields of a JSON body; each error names the field and what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relax_engine.backends.engines.local.errors import BadRequestError


class Body:
    """A JSON object. A missing or null field takes its default; without a default it is required."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def _get(self, name: str, kind: type, default: Any) -> Any:
        value = self._values.get(name)
        if value is None:
            if default is None:
                raise BadRequestError(f"{name} is required")
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise BadRequestError(f"{name} must be a {kind.__name__}, got {value!r}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        return str(self._get(name, str, default))

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer."""
        return int(self._get(name, int, default))

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        return bool(self._get(name, bool, default))

    def version(self, name: str) -> str | None:
        """A weight version: a string or an integer, or None when absent."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise BadRequestError(f"{name} must be a string or an integer, got {value!r}")
        return str(value)

    def items(self, name: str, kind: type) -> list[Any]:
        """A required list whose entries are of `kind`."""
        values = self._get(name, list, None)
        for index, value in enumerate(values):
            if not isinstance(value, kind):
                raise BadRequestError(f"{name}[{index}] must be a {kind.__name__}, got {value!r}")
        return list(values)

    def tags(self, name: str, known: set[str]) -> set[str]:
        """A set of known names; all of them when absent."""
        values = set(self._get(name, list, sorted(known)))
        if not values <= known:
            raise BadRequestError(f"{name} must be among {sorted(known)}, got {sorted(values - known)}")
        return values
