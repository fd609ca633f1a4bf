"""The configuration that a migration builds up.

What lives here: values by our field names, checked one by one as they come in, and the report's entries. What does not:
which foreign setting becomes which field.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from relax_engine.config.fields import all_fields, flag_name, pass_through_field
from relax_engine.config.run_config import RunConfig
from relax_engine.errors import ConfigError
from relax_engine.migrate.report import Entry, Report, Status
from relax_engine.migrate.shell.symbols import is_known, render, unknowns


class Draft:
    """Fields set so far (`values`), keys for the user's own code (`custom`), and the report."""

    def __init__(self, report: Report) -> None:
        """Start empty."""
        self.report = report
        self.values: dict[str, Any] = {}
        self.custom: dict[str, Any] = {}

    def settle(self, key: str, value: str, targets: dict[str, Any], reason: str = "") -> None:
        """Set fields for a foreign setting; where a field refuses the value, the entry needs the user and says why."""
        for name, target in targets.items():
            problem = _problem(name, target)
            if problem:
                self.needs(key, value, problem)
                return
        self.values |= targets
        self.add(key, value, Status.MAPPED, _flags(targets), reason)

    def default(self, key: str, value: str, targets: dict[str, Any], reason: str) -> None:
        """Write out a default of the source."""
        self.values |= targets
        self.add(key, value, Status.DEFAULTED, _flags(targets), reason)

    def skip(self, key: str, value: str, reason: str) -> None:
        """Note that a setting is not needed."""
        self.add(key, value, Status.NOT_NEEDED, "", reason)

    def needs(self, key: str, value: str, reason: str) -> None:
        """Note that a setting needs the user."""
        self.add(key, value, Status.NEEDS_YOU, "", reason)

    def add(self, key: str, value: str, status: Status, target: str, reason: str) -> None:
        """Add an entry; unknown parts of its value are shown as shell text."""
        self.report.entries.append(Entry(key, render(value), status, render(target), render(reason)))


def read_value(text: str) -> Any:
    """A setting's text as a number, truth value, None, list or text, as Hydra would read it."""
    if not is_known(text):
        return text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _problem(name: str, value: Any) -> str:
    """Why a field does not take the value; empty if it does."""
    if (
        isinstance(value, str)
        and not is_known(value)
        and name in all_fields()
        and all_fields()[name].type_name != "str"
    ):
        return f"{flag_name(name)} depends on {', '.join(unknowns(value))}, which is set outside of the script"
    try:
        RunConfig.from_flat(**{name: value})
    except ConfigError as error:
        return " ".join(render(str(error)).split())
    return ""


def _flags(targets: dict[str, Any]) -> str:
    return " ".join(_flag(name, value) for name, value in targets.items())


def _flag(name: str, value: Any) -> str:
    flag = flag_name(name) if name in all_fields() or pass_through_field(name) else name
    if value is True:
        return flag
    if value is False or value is None:
        return f"{flag} (off)"
    return f"{flag} {json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value}"
