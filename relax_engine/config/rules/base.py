"""What a rule is and where it registers.

What lives here: `Finding`, the `@rule` registry and helpers that quote flags with their values.
What does not: any rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from relax_engine.config.fields import flag_name
from relax_engine.config.run_config import RunConfig
from relax_engine.utils.redact import redact_value

Severity = Literal["error", "warning", "note"]
Findings = Iterator["Finding"]
Rule = Callable[[RunConfig, "Reporter"], Findings]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule has to say: the flags involved with their values, what is wrong, and a fix."""

    severity: Severity
    rule: str
    message: str
    fix: str
    flags: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """`--flag value, --flag value: message. Fix: ...`."""
        quoted = ", ".join(quote(flag, value) for flag, value in self.flags.items())
        return f"{quoted}: {self.message}." + (f" Fix: {self.fix}." if self.fix else "")


def quote(flag: str, value: Any) -> str:
    """A flag as it would be typed; `--flag (not set)` for None and for a flag that is off."""
    if value is True:
        return flag
    if value is None or value is False or value in ([], {}):
        return f"{flag} (not set)"
    return f"{flag} {json.dumps(value) if isinstance(value, dict | list | tuple) else value}"


RULES: dict[str, Rule] = {}
"""Every rule by name, in the order of definition."""


def rule(function: Rule) -> Rule:
    """Register a rule: a function of a configuration and the reporter that builds its findings.

    Its name is the function's.

    Raises:
        ValueError: the name is taken.
    """
    name = function.__name__
    if name in RULES:
        raise ValueError(f"there are two rules named {name}")
    RULES[name] = function
    return function


def run_rules(config: RunConfig) -> Findings:
    """The findings of all registered rules, in the order of registration."""
    for name, function in RULES.items():
        yield from function(config, Reporter(name, config))


@dataclass(frozen=True, slots=True)
class Reporter:
    """Builds the findings of one rule, quoting values from `config`."""

    rule: str
    config: RunConfig

    def error(self, names: str, message: str, fix: str) -> Finding:
        """Something that cannot run, or would not do what was asked. `names` are fields, separated by spaces."""
        return self._finding("error", names, message, fix)

    def warning(self, names: str, message: str, fix: str) -> Finding:
        """Something that runs, but hardly as intended."""
        return self._finding("warning", names, message, fix)

    def note(self, names: str, message: str, fix: str = "") -> Finding:
        """A fact worth knowing."""
        return self._finding("note", names, message, fix)

    def _finding(self, severity: Severity, names: str, message: str, fix: str) -> Finding:
        values = {flag_name(name): redact_value(getattr(self.config.flat, name), name) for name in names.split()}
        return Finding(severity, self.rule, message, fix, values)
