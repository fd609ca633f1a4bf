"""`relax doctor`: what a run with these flags would do, and what is wrong with them.

What lives here: printing. What does not: the rules (`relax_engine.config.doctor`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from relax_engine.config import ConfigError, RunConfig, parse_args
from relax_engine.config.doctor import check
from relax_engine.config.roles import devices_needed, devices_of, required_roles
from relax_engine.config.rules.base import Finding
from relax_engine.utils.redact import redact_value

_DESCRIPTION = (
    "Check the flags of a run without starting it: prints the configuration in force, roles, device need and "
    "findings. Exit code 1 if the run could not start. Besides the flags of `relax train` there is "
    "--format {text,json}."
)


def main(argv: list[str]) -> int:
    """Check the flags in `argv`; returns 0, or 1 when there are errors.

    Raises:
        ConfigError: flags that cannot be parsed, with `--format text`.
    """
    output, rest = _take_format(argv)
    try:
        config = parse_args(rest, prog="relax doctor", description=_DESCRIPTION)
    except ConfigError as error:
        if output == "text":
            raise
        finding = Finding("error", "flags_parse", str(error), "")
        print(json.dumps({"ok": False, "findings": [dataclasses.asdict(finding)]}, indent=2))
        return 1
    report = describe(config)
    print(json.dumps(report, indent=2) if output == "json" else render(report, config))
    return 0 if report["ok"] else 1


def describe(config: RunConfig) -> dict[str, Any]:
    """The findings and facts of a configuration, ready for JSON."""
    from relax_engine.simulation.device_memory import device_memory

    findings = check(config)
    return {
        "ok": all(finding.severity != "error" for finding in findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "mode": config.mode,
        "staleness_bound": config.staleness_bound,
        "roles": {role: devices_of(config, role) for role in required_roles(config)},
        "devices": devices_needed(config),
        "memory": device_memory(config),
        "digest": config.digest(),
        "config": redact_value(config.to_dict()),
    }


def render(report: Mapping[str, Any], config: RunConfig) -> str:
    """The report as text: configuration, roles, and the findings last, where they are seen."""
    roles = ", ".join(f"{role} {count}" for role, count in report["roles"].items())
    lines = [
        config.to_yaml(),
        f"mode      {report['mode']}, staleness at most {report['staleness_bound']}",
        f"roles     {roles}",
        f"devices   {report['devices']} (GPUs, or single-threaded CPU ranks where there is no GPU)",
        f"digest    {report['digest'][:16]}",
        *_memory_lines(report["memory"] or {}),
        "",
    ]
    findings = [Finding(**finding) for finding in report["findings"]]
    lines += [f"{finding.severity:<9} {finding}" for finding in findings]
    errors = sum(finding.severity == "error" for finding in findings)
    lines.append(f"{errors} error(s); this run cannot start" if errors else "no errors; this run can start")
    return "\n".join(lines)


def _memory_lines(memory: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Expected bytes on each device; what is in host memory is not part of the sum."""
    lines = []
    for role, parts in memory.items():
        total = sum(size for part, size in parts.items() if not part.startswith("host"))
        shown = ", ".join(f"{part} {_size(size)}" for part, size in parts.items())
        lines.append(f"memory    {role}: {_size(total)} a device ({shown})")
    return lines


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"


def _take_format(argv: list[str]) -> tuple[str, list[str]]:
    """Split `--format NAME` (or `--format=NAME`) off."""
    rest = list(argv)
    for index, word in enumerate(rest):
        name, equals, value = word.partition("=")
        if name != "--format":
            continue
        width = 1 if equals else 2
        value = value if equals else " ".join(rest[index + 1 : index + 2])
        if value not in ("text", "json"):
            raise ConfigError(f"--format {value}: must be one of text, json")
        return value, rest[:index] + rest[index + width :]
    return "text", rest
