"""From a command line to a `RunConfig`.

What lives here: the merge of flags over a YAML file, pass-through flags, and refusal of unknown ones.
What does not: the options themselves (`flags`) and their types (`sections`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from relax_engine.config.fields import all_fields, pass_through_field
from relax_engine.config.files import read_config_file
from relax_engine.config.flags import PARSER_FLAGS, build_parser
from relax_engine.config.naming import sectioned, unknown_flag
from relax_engine.config.run_config import RunConfig
from relax_engine.errors import ConfigError


def parse_args(
    argv: Sequence[str] | None = None,
    *,
    prog: str = "relax train",
    description: str = "Train a policy. Every flag is also a key of --config FILE.yaml.",
) -> RunConfig:
    """Parse a command line (`sys.argv[1:]` by default); flags win over the keys of `--config`.

    `--help` prints the flags by section and exits.

    Raises:
        ConfigError: an unknown flag (with the nearest known one), a value of a wrong type or out of bounds,
            a stray word, or an unreadable file.
    """
    tokens = list(sys.argv[1:] if argv is None else argv)
    own, passed = split_pass_through(tokens)
    namespace, stray = build_parser(prog, description).parse_known_args(own)
    if stray:
        raise ConfigError(f"{stray[0]!r} belongs to no flag; a flag that takes several values must come before them")
    given: dict[str, Any] = vars(namespace)
    config_file = given.pop("config", None)
    return RunConfig.from_sections(
        _merge(sectioned(read_config_file(config_file) if config_file else {}), given | passed)
    )


def _merge(sections: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    for name, values in sectioned(given).items():
        below = sections.setdefault(name, {})
        for key, value in values.items():
            passes_on = key in ("sglang_args", "router_args") and isinstance(value, dict)
            below[key] = {**below.get(key, {}), **value} if passes_on else value
    return sections


def split_pass_through(tokens: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Take `--sglang-*` and `--router-*` flags that are no fields out of a command line.

    A pass-through without a value is True, with one value that value read as YAML, with several a list.

    Returns:
        the remaining tokens, and the values by snake_case name.

    Raises:
        ConfigError: a flag that is neither known nor a pass-through.
    """
    switched_off = {f"no_{name}" for name, spec in all_fields().items() if spec.default is True}
    known = {*all_fields(), *switched_off, *PARSER_FLAGS}
    own: list[str] = []
    passed: dict[str, Any] = {}
    for flag, values in _chunks(tokens):
        if flag is None:
            own.extend(values)
            continue
        head, equals, inline = flag.partition("=")
        name = head[2:].replace("-", "_")
        if name in known:
            own.extend([flag, *values])
        elif pass_through_field(name):
            passed[name] = _pass_through_value(head, [inline, *values] if equals else values)
        else:
            raise unknown_flag(name, extra=PARSER_FLAGS)
    return own, passed


def _chunks(tokens: Sequence[str]) -> Iterator[tuple[str | None, list[str]]]:
    """Each flag with the words up to the next flag; words before the first flag come under None."""
    flag: str | None = None
    values: list[str] = []
    for token in tokens:
        if token.startswith("--") and len(token) > 2:
            yield flag, values
            flag, values = token, []
        else:
            values.append(token)
    yield flag, values


def _pass_through_value(flag: str, values: list[str]) -> Any:
    try:
        read = [yaml.safe_load(value) for value in values]
    except yaml.YAMLError as error:
        raise ConfigError(f"{flag} {' '.join(values)}: {' '.join(str(error).split())}") from error
    if not read:
        return True
    return read[0] if len(read) == 1 else read
