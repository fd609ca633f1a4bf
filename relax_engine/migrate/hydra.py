"""Hydra's YAML files of a recipe.

What lives here: finding the file that `--config-name` names beside the recipe, and flattening it. What does not: the
defaults of verl itself, which `verl` knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from relax_engine.migrate.errors import MigrationError
from relax_engine.migrate.shell.symbols import is_known, symbol

_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
_ENVIRONMENT = re.compile(r"\$\{oc\.env:([A-Za-z_]\w*)(?:,([^}]*))?\}")
_PACKAGE = ("verl", "trainer", "config")


def recipe_settings(options: Mapping[str, str], script: Path, root: Path) -> dict[str, str]:
    """The settings of the recipe's own YAML file as text by dotted key; empty if it has none or it is verl's.

    Raises:
        MigrationError: the file is not YAML.
    """
    name, folder = options.get("config-name"), options.get("config-path", "config")
    if name is None or not is_known(name + folder):
        return {}
    file = name if name.endswith((".yaml", ".yml")) else name + ".yaml"
    for base in (script.parent, root, *script.parents):
        path = base / folder / file
        if path.is_file() and path.parent.parts[-3:] != _PACKAGE:
            return _resolved(dict(_flat(_read(path))))
    return {}


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise MigrationError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, Mapping):
        raise MigrationError(f"{path}: expected `name: value` lines at the top level")
    return {key: value for key, value in content.items() if key not in ("defaults", "hydra")}


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _text(value)


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value)


def _resolved(settings: dict[str, str]) -> dict[str, str]:
    def environment(match: re.Match[str]) -> str:
        return match.group(2) if match.group(2) is not None else symbol(f"${{{match.group(1)}}}")

    def reference(match: re.Match[str]) -> str:
        return settings.get(match.group(1), symbol(match.group()))

    return {key: _REFERENCE.sub(reference, _ENVIRONMENT.sub(environment, text)) for key, text in settings.items()}
