"""YAML files of configuration.

What lives here: reading and the shape of the top level. What does not: names and values (`naming`, `sections`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from relax_engine.config.fields import all_fields
from relax_engine.errors import ConfigError


def read_config_file(path: str | Path, flag: str = "--config") -> dict[str, Any]:
    """The top-level mapping of a YAML file; `flag` is named in errors.

    Raises:
        ConfigError: the file is missing, is not YAML, or is not a mapping with text keys.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror or error}") from error
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{flag} {path}: not valid YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{flag} {path}: expected `name: value` lines at the top level")
    return content


def with_custom_settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Add the keys of `--custom-config-path` to a sectioned configuration.

    A key that is a field's name sets (and overrides) that field; all others go to `custom`. A configuration that
    has `custom` already was read before and is left as it is.

    Raises:
        ConfigError: as for `read_config_file`.
    """
    path = sections.get("agentic", {}).get("custom_config_path")
    if path is None or "custom" in sections:
        return dict(sections)
    result: dict[str, Any] = {name: dict(values) for name, values in sections.items()}
    result["custom"] = {}
    for raw_name, value in read_config_file(path, "--custom-config-path").items():
        spec = all_fields().get(raw_name.replace("-", "_"))
        if spec is None:
            result["custom"][raw_name] = value
        else:
            result.setdefault(spec.section, {})[spec.name] = value
    return result
