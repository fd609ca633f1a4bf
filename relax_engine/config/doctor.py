"""The doctor: every rule between fields, run before anything starts.

What lives here: running the rules and turning errors into one exception. What does not: the rules (`rules/`) and
printing (`relax_engine.cli.doctor`).
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable

from relax_engine.config.rules.base import Finding, run_rules
from relax_engine.config.run_config import RunConfig
from relax_engine.errors import ConfigError

logger = logging.getLogger(__name__)

_SUBJECTS = (
    "modes",
    "batching",
    "rollout",
    "algorithm",
    "corrections",
    "distillation",
    "optimizer",
    "critic",
    "reward",
    "agentic",
    "model",
    "lora",
    "checkpoint",
    "data",
    "debug",
    "weight_sync",
    "health",
    "access",
    "elastic",
    "autoscaler",
    "accepted",
)
_ORDER = {"error": 0, "warning": 1, "note": 2}


def check(config: RunConfig) -> list[Finding]:
    """All findings, errors first. Reads local files that flags name; starts nothing."""
    for subject in _SUBJECTS:
        importlib.import_module(f"relax_engine.config.rules.{subject}")
    return sorted(run_rules(config), key=lambda finding: _ORDER[finding.severity])


def require_valid(config: RunConfig) -> None:
    """Refuse a configuration with errors; log warnings and notes.

    Raises:
        ConfigError: with every error, one per line.
    """
    findings = check(config)
    refuse_errors(findings)
    for finding in findings:
        logger.log(logging.WARNING if finding.severity == "warning" else logging.INFO, "%s", finding)


def refuse_errors(findings: Iterable[Finding]) -> None:
    """Do nothing, unless one of the findings is an error.

    Raises:
        ConfigError: with every error, one per line.
    """
    errors = [str(finding) for finding in findings if finding.severity == "error"]
    if errors:
        raise ConfigError("\n".join(errors))
