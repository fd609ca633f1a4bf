r"""Answers that are words: `\text{Monday}`, `yes`, `East`.

What lives here: telling words from products of variables, which computer algebra would compare without order, and their
comparison. What does not: single letters of choices (`letters`).
"""

from __future__ import annotations

import re

_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|textrm|mbox)\s*\{([^{}]*)\}")
_WORDS = re.compile(r"[^\W\d_]+(?:[\s,.'’-]+[^\W\d_]+)*[\s.!]*")
_SHORT = frozenset({"yes", "no", "odd", "all", "one", "two", "six", "ten", "red", "sun", "mon", "tie"})


def unwrapped(text: str) -> str:
    r"""`text` without text commands and white space: `10:30 \text{ a.m.}` is `10:30a.m.`."""
    return "".join(_WRAPPED.sub(r"\1", text).replace("\\ ", "").replace("~", "").split())


def as_words(text: str) -> str | None:
    """The words of `text` in lower case, or None if it is mathematics.

    Letters count as words inside of text commands, or if there are four together, or several groups of them.
    """
    bare = _WRAPPED.sub(r" \1 ", text).replace("\\ ", " ").replace("~", " ").replace("$", "").strip()
    if not _WORDS.fullmatch(bare):
        return None
    words = re.findall(r"[^\W\d_]+", bare.lower())
    wrapped = _WRAPPED.search(text) is not None and len("".join(words)) > 1
    return " ".join(words) if wrapped or any(len(word) >= 4 or word in _SHORT for word in words) else None
