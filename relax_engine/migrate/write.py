"""The files of a migrated recipe: `<algo>.yaml`, `run_<algo>.sh` and the report.

What lives here: their text. What does not: the values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from relax_engine.config.fields import all_fields, flag_name
from relax_engine.migrate.modes import Modes
from relax_engine.migrate.shell.symbols import is_known, quote


def divided(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings with a known value, for the YAML file, and those that the shell must fill in."""
    known = {name: value for name, value in values.items() if _known(value)}
    return known, {name: value for name, value in values.items() if name not in known}


def settings_file(values: Mapping[str, Any], custom: Mapping[str, Any], origin: str) -> str:
    """The YAML file: flat keys in the order of docs/configuration.md, the user's own under `custom`."""
    order = {name: position for position, name in enumerate(all_fields())}
    flat = dict(sorted(values.items(), key=lambda item: order.get(item[0], len(order))))
    text = yaml.safe_dump(flat, sort_keys=False, allow_unicode=True, width=110)
    if custom:
        text += "\n" + yaml.safe_dump({"custom": dict(custom)}, sort_keys=False, allow_unicode=True)
    return f"# Settings of {origin}; run_*.sh adds the mode, the devices and the paths.\n\n{text}"


def run_script(
    algo: str, up: int, shell_values: Mapping[str, Any], modes: Modes, prerequisites: list[str], refusal: str
) -> str:
    """The launch script for both modes.

    Args:
        algo: The recipe's name.
        up: How many folders the import root is above the script's.
        shell_values: Settings that only the shell knows.
        modes: Devices and mode flags.
        prerequisites: What to do before, one line each.
        refusal: Why the algorithm does not run in async mode; empty if it does.
    """
    before = "\n".join(f"#   {number}. {text}" for number, text in enumerate(prerequisites, 1))
    shell_lines = f"\n{_lines(shell_values)}\n" if shell_values else ""
    if refusal:
        asynchronous = f"    echo {quote(refusal)} >&2\n    exit 2"
    else:
        asynchronous = f"    MODE_ARGS=(\n{_lines(modes.asynchronous, 8)}\n    )"
    return f"""#!/bin/bash
# Usage: bash run_{algo}.sh [sync|async] [further flags]
#
# Before the first run:
{before}

set -e
set -o pipefail

MODE="${{1:-${{MODE:-sync}}}}"    # argument 1, else $MODE, else sync
[ "$#" -eq 0 ] || shift
case "${{MODE}}" in
    sync | async) ;;
    *) echo "unknown mode '${{MODE}}': use sync or async" >&2; exit 2 ;;
esac

SCRIPT_DIR="$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" &>/dev/null && pwd)"
ROOT="$(cd -- "${{SCRIPT_DIR}}/{"/".join([".."] * up)}" &>/dev/null && pwd)"
export PYTHONPATH="${{ROOT}}${{PYTHONPATH:+:${{PYTHONPATH}}}}"

SHELL_ARGS=({shell_lines})

if [ "${{MODE}}" = "async" ]; then
{asynchronous}
else
    MODE_ARGS=(
{_lines(modes.sync, 8)}
    )
fi

"${{PYTHON:-python3}}" -m relax_engine.cli.main train \\
    --config "${{SCRIPT_DIR}}/{algo}.yaml" "${{SHELL_ARGS[@]}}" "${{MODE_ARGS[@]}}" "$@"
"""


def _lines(values: Mapping[str, Any], indent: int = 4) -> str:
    return "\n".join(" " * indent + _argument(name, value) for name, value in values.items())


def _argument(name: str, value: Any) -> str:
    flag = flag_name(name)
    if value is True:
        return flag
    if name == "eval_prompt_data":
        words = [word for dataset, files in value.items() for word in (dataset, *files)]
        return " ".join([flag, *map(quote, words)])
    if isinstance(value, dict):
        return f"{flag} {quote(json.dumps(value))}"
    items = value if isinstance(value, list) else [value]
    return " ".join([flag, *(quote(str(item)) for item in items)])


def _known(value: Any) -> bool:
    if isinstance(value, str):
        return is_known(value)
    if isinstance(value, dict):
        return all(_known(item) for item in value.values())
    if isinstance(value, list):
        return all(_known(item) for item in value)
    return True
