"""Answers that are the letter of a choice, in the ways that models write them.

What lives here: reading one letter out of an answer. What does not: finding the answer in a response (`extract`,
`boxed`).
"""

from __future__ import annotations

import re

MOST_CHARACTERS = 100

_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm|mathsf)\s*\{([^{}]*)\}")
_BARE = re.compile(
    r"[\s$*]*(?:(?:option|choice|answer)\s*)?[\s$*:]*[(\[]?\s*([A-Za-z])\s*[)\]]?[\s.$*:]*", re.IGNORECASE
)
_WITH_TEXT = re.compile(
    r"[\s$*]*(?:(?:option|choice)\s*)?(?:[(\[]\s*([A-Z])\s*[)\]]|([A-Z])\s*[).:])[\s*~\\,]+\S.*", re.DOTALL
)


def choice_letter(text: str, *, with_text: bool = True) -> str | None:
    r"""The letter that `text` names, upper case: `B`, `(B)`, `B.`, `\text{(B)}`, `option b`, `(B) 12 apples`.

    None for anything else, as for two letters. Without `with_text` nothing may follow the letter.
    """
    text = _WRAPPED.sub(r"\1", text)[:MOST_CHARACTERS]
    bare = _BARE.fullmatch(text)
    if bare:
        return bare[1].upper()
    named = _WITH_TEXT.fullmatch(text) if with_text else None
    return (named[1] or named[2]) if named else None
