"""Counting the tokens of prompts and labels with a Hugging Face tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_prep.errors import DataError

Tokenize = Callable[[Any], int]


def load_counter(directory: str | Path) -> Tokenize:
    """`prompt -> tokens`: messages are rendered by the chat template, text is taken as it is.

    Raises:
        DataError: the directory does not exist, or holds no tokenizer.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise DataError(f"tokenizer directory {str(directory)!r} does not exist")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError) as error:
        raise DataError(f"{str(directory)!r} holds no tokenizer that can be loaded: {error}") from error

    def count(prompt: Any) -> int:
        if not isinstance(prompt, str):
            prompt = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        return len(tokenizer.encode(prompt, add_special_tokens=False, verbose=False))

    return count


def context_of(directory: str | Path) -> int | None:
    """Longest prompt that leaves room for one response token, from `max_position_embeddings`; None if not stated."""
    config = Path(directory) / "config.json"
    if not config.is_file():
        return None
    context = json.loads(config.read_text()).get("max_position_embeddings")
    return int(context) - 1 if context else None
