"""Commands that only compute text: what they would print.

What lives here: `echo`, `printf`, `seq`, `basename`, `dirname`, `tr`, `pwd`. What does not: any command that looks at
the machine; those are unknown.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

_LONGEST_SEQUENCE = 100_000


def output(argv: list[str], stdin: str | None, directory: str) -> str | None:
    """What the command prints, or None if that cannot be known. `directory` is the working directory."""
    command = _COMMANDS.get(argv[0])
    if argv[0] == "pwd":
        return directory + "\n"
    if argv[0] == "cat" and len(argv) == 1:
        return stdin
    if argv[0] == "tr":
        return _translate(argv[1:], stdin)
    return command(argv[1:]) if command else None


def formatted(arguments: list[str]) -> str:
    """The text of `printf FORMAT ARGUMENT...`: the format is used again while arguments remain."""
    template, values = arguments[0], list(arguments[1:])
    pieces: list[str] = []
    while True:
        pieces.append(_format_once(template, values))
        if not values or not re.search(r"%[^%]", template):
            return "".join(pieces)


def _format_once(template: str, values: list[str]) -> str:
    def replace(match: re.Match[str]) -> str:
        if match.group() == "%%":
            return "%"
        value = values.pop(0) if values else ""
        if match.group()[-1] in "di":
            return match.group() % int(value or 0)
        return (match.group()[:-1] + "s") % value

    return re.sub(r"%%|%[-0-9.]*[sdiqb]", replace, template.replace("\\n", "\n").replace("\\t", "\t"))


def _echo(arguments: list[str]) -> str:
    while arguments and re.fullmatch(r"-[neE]+", arguments[0]):
        arguments = arguments[1:]
    return " ".join(arguments) + "\n"


def _seq(arguments: list[str]) -> str | None:
    try:
        numbers = [int(argument) for argument in arguments]
    except ValueError:
        return None
    first, step, last = {1: [1, 1, *numbers], 2: [*numbers[:1], 1, *numbers[1:]]}.get(len(numbers), numbers)
    if step == 0 or abs(last - first) > _LONGEST_SEQUENCE:
        return None
    return "".join(f"{number}\n" for number in range(first, last + (1 if step > 0 else -1), step))


def _basename(arguments: list[str]) -> str | None:
    names = [argument for argument in arguments if argument != "--"]
    if not names:
        return None
    name = posixpath.basename(names[0].rstrip("/"))
    return (name.removesuffix(names[1]) if len(names) > 1 else name) + "\n"


def _dirname(arguments: list[str]) -> str | None:
    names = [argument for argument in arguments if argument != "--"]
    return (posixpath.dirname(names[0]) or ".") + "\n" if names else None


def _translate(arguments: list[str], stdin: str | None) -> str | None:
    if stdin is None or len(arguments) != 2:
        return None
    if arguments == ["[:upper:]", "[:lower:]"]:
        return stdin.lower()
    if arguments == ["[:lower:]", "[:upper:]"]:
        return stdin.upper()
    source, target = (text.replace("\\n", "\n") for text in arguments)
    return stdin.translate(str.maketrans(source, target)) if len(source) == len(target) else None


_COMMANDS: dict[str, Callable[[list[str]], str | None]] = {
    "echo": _echo,
    "printf": lambda arguments: formatted(arguments) if arguments else None,
    "seq": _seq,
    "basename": _basename,
    "dirname": _dirname,
}
