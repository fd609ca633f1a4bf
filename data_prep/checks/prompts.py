"""A prompt as one text: what duplicates are compared by, and which scripts it is written in."""

from __future__ import annotations

import unicodedata
from collections import Counter
from functools import cache
from typing import Any

import xxhash

_SAMPLE = 400  # characters that decide the script


def prompt_text(prompt: Any) -> str:
    """The text of a prompt, message after message; what is no text is left out."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list):
        return ""
    contents = (message.get("content") for message in prompt if isinstance(message, dict))
    return "\n".join(content for content in contents if isinstance(content, str))


def normal(text: str) -> str:
    """Text without the differences that do not make two prompts different: case, spaces, compatibility characters."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def key(text: str, media: bytes = b"") -> int:
    """64-bit hash of a prompt's normal text and its media."""
    state = xxhash.xxh3_64(normal(text).encode("utf-8", "surrogatepass"))
    state.update(media)
    return int(state.intdigest())


def script(text: str) -> str:
    """The script of most letters (`latin`, `cjk`, `cyrillic`, ...), or `none`: a rough hint at the language."""
    letters = Counter(_script_of(character) for character in text[:_SAMPLE] if character.isalpha())
    return letters.most_common(1)[0][0] if letters else "none"


@cache
def _script_of(character: str) -> str:
    return unicodedata.name(character, "unknown").split()[0].split("-")[0].lower()
