"""The command-line parser, generated from the fields.

What lives here: argparse options and the help text. What does not: types and bounds, which the sections check
(`parse` hands them the text as it was typed).
"""

from __future__ import annotations

import argparse
import inspect
from typing import Any, NoReturn

from relax_engine.config.fields import SECTIONS, FieldSpec, all_fields
from relax_engine.errors import ConfigError

PARSER_FLAGS = ("help", "config")
"""Names of flags that belong to the parser and not to a section."""


class FlagParser(argparse.ArgumentParser):
    """A parser that raises `ConfigError` where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Raise the message; the caller decides how to show it."""
        raise ConfigError(message.removeprefix("argument "))


def build_parser(prog: str, description: str) -> FlagParser:
    """A parser with one option per field, grouped by section; given flags end up in the namespace, others do not."""
    parser = FlagParser(
        prog=prog,
        description=description,
        usage=f"{prog} [--config FILE.yaml] [--flag value ...]",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=_HelpFormatter,
        add_help=False,
    )
    general = parser.add_argument_group("general")
    general.add_argument("-h", "--help", action="help", help="Show this help and exit.")
    general.add_argument(
        "--config", metavar="FILE", help="YAML file of flat or sectioned keys; command-line flags win over it."
    )
    for section, model in SECTIONS.items():
        group = parser.add_argument_group(section, inspect.cleandoc(model.__doc__ or ""))
        for spec in all_fields().values():
            if spec.section == section:
                _add_option(group, spec)
    general.add_argument("--sglang-NAME", metavar="VALUE", help="Any further argument of the engine's server.")
    general.add_argument("--router-NAME", metavar="VALUE", help="Any further argument of the router.")
    return parser


def _add_option(group: Any, spec: FieldSpec) -> None:
    if spec.is_bool:
        group.add_argument(spec.flag, dest=spec.name, action="store_true", help=help_text(spec))
        if spec.default is True:
            group.add_argument(
                "--no-" + spec.flag[2:], dest=spec.name, action="store_false", help=f"Turn {spec.flag} off."
            )
        return
    options: dict[str, Any] = {"dest": spec.name, "metavar": spec.type_name.upper() if not spec.choices else None}
    if spec.choices:
        options["metavar"] = "{" + ",".join(map(str, spec.choices)) + "}"
    if spec.takes_many:
        options |= {"nargs": "+", "metavar": "VALUE"}
    group.add_argument(spec.flag, help=help_text(spec), **options)


def help_text(spec: FieldSpec) -> str:
    """The field's sentence with its unit, bounds and default, escaped for argparse."""
    facts = [fact for fact in (spec.unit, spec.bounds) if fact]
    if spec.default_text:
        facts.append(f"default {spec.default_text}")
    text = spec.help + (f" [{'; '.join(facts)}]" if facts else "")
    return text.replace("`", "").replace("%", "%%")


class _HelpFormatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=120)
