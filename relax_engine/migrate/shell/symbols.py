"""Text that is known only when the script runs, kept inside of strings.

What lives here: marks around an environment variable or a command whose value nobody knows now, so that
`"$HOME/data"` survives evaluation and can be written into another script. What does not: evaluation.
"""

from __future__ import annotations

import re

_OPEN, _CLOSE = "\ue000", "\ue001"
_SYMBOL = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")


def symbol(shell_text: str) -> str:
    """`shell_text` (`${HOME}`, `$(date +%s)`) as one unknown value."""
    return f"{_OPEN}{render(shell_text)}{_CLOSE}"


def variable(name: str) -> str:
    """The unknown value of an environment variable or, for a number, of an argument of the script."""
    return symbol(f"${{ARG{name}}}" if name.isdigit() else f"${{{name}}}")


def is_known(text: str) -> bool:
    """Whether `text` has no unknown part."""
    return _OPEN not in text


def unknowns(text: str) -> list[str]:
    """The unknown parts as shell text, each once, in order."""
    return list(dict.fromkeys(_SYMBOL.findall(text)))


def render(text: str) -> str:
    """`text` with its unknown parts as shell text."""
    return _SYMBOL.sub(lambda match: match.group(1), text)


def split_words(text: str, separators: str = " \t\n") -> list[str]:
    """Split at white space, never inside of an unknown part."""
    words: list[str] = []
    current: list[str] = []
    depth = 0
    for character in text:
        depth += (character == _OPEN) - (character == _CLOSE)
        if depth == 0 and character in separators:
            if current:
                words.append("".join(current))
            current = []
        else:
            current.append(character)
    if current:
        words.append("".join(current))
    return words


def quote(text: str) -> str:
    """`text` as one word of a shell script; unknown parts are expanded there, everything else is literal."""
    if is_known(text):
        if text and re.fullmatch(r"[A-Za-z0-9_@%+=:,./-]+", text):
            return text
        return "'" + text.replace("'", "'\\''") + "'"
    pieces: list[str] = []
    position = 0
    for match in _SYMBOL.finditer(text):
        pieces += [re.sub(r'([$`"\\])', r"\\\1", text[position : match.start()]), match.group(1)]
        position = match.end()
    pieces.append(re.sub(r'([$`"\\])', r"\\\1", text[position:]))
    return '"' + "".join(pieces) + '"'
