"""From flat names to sections, with the nearest name for a typo.

What lives here: the one place that accepts or refuses a name. What does not: values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from relax_engine.config.fields import SECTIONS, all_fields, flag_name, pass_through_field
from relax_engine.errors import ConfigError
from relax_engine.utils.suggest import nearest


def unknown_flag(name: str, extra: Iterable[str] = ()) -> ConfigError:
    """The error for a name that no field has; `extra` are further known names."""
    match = nearest(name, [*all_fields(), *extra])
    hint = f"; did you mean {flag_name(match)}?" if match else "; `relax train --help` lists all flags"
    return ConfigError(f"unknown flag {flag_name(name)}{hint}")


def sectioned(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sort flat values into sections: `{"lr": 1}` -> `{"optimizer": {"lr": 1}}`.

    A mapping under a section's name is that section's values. Dashes count as underscores.
    `sglang_*` and `router_*` names that are no fields are collected in `sglang_args` / `router_args`.

    Raises:
        ConfigError: an unknown name, with the nearest known one.
    """
    result: dict[str, Any] = {}
    passed: dict[str, dict[str, Any]] = {}
    for raw_name, value in values.items():
        name = str(raw_name).replace("-", "_")
        if name == "custom" and isinstance(value, Mapping):
            result.setdefault("custom", {}).update(value)
        elif name in SECTIONS and isinstance(value, Mapping):
            for inner, inner_value in value.items():
                _place(result, passed, str(inner).replace("-", "_"), inner_value, section=name)
        else:
            _place(result, passed, name, value, section=None)
    for field, entries in passed.items():
        section = result.setdefault(all_fields()[field].section, {})
        section[field] = {**section.get(field, {}), **entries}
    return result


def _place(
    result: dict[str, Any], passed: dict[str, dict[str, Any]], name: str, value: Any, *, section: str | None
) -> None:
    spec = all_fields().get(name)
    if spec is not None:
        if section is not None and spec.section != section:
            raise ConfigError(f"{name} is a key of section {spec.section}, not of {section}")
        result.setdefault(spec.section, {})[name] = value
        return
    collected = pass_through_field(name)
    if collected is None:
        raise unknown_flag(name)
    field, bare_name = collected
    passed.setdefault(field, {})[bare_name] = value
