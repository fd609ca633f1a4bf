r"""Finding `\boxed{...}` in a response; shared by the mathematical rewards."""

from __future__ import annotations

COMMANDS = ("\\boxed", "\\fbox")


def last_boxed(text: str, commands: tuple[str, ...] = COMMANDS) -> str | None:
    r"""The content of the last `\boxed{...}` (or `\fbox{...}`, or `\boxed x`); None if there is none that closes."""
    start, command = max((text.rfind(command), command) for command in commands)
    if start < 0:
        return None
    position = start + len(command)
    if text[position : position + 1] == " ":
        return text[position + 1 :].split("$")[0]
    if text[position : position + 1] != "{":
        return None
    depth = 0
    for index in range(position, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[position + 1 : index]
    return None
