"""Counting the tokens of prompts and labels with a Hugging Face tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from data_prep.errors import DataError
from data_prep.media import MediaReader
from data_prep.schema import PLACEHOLDERS

Tokenize = Callable[[Any, Mapping[str, Any]], int | None]


def load_counter(directory: str | Path) -> Tokenize:
    """`(prompt, row) -> tokens`: messages are rendered by the chat template, text is taken as it is.

    For a model that reads media, the row's own count as its processor counts them; None where they cannot be used.

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

    media = _media_counter(directory, tokenizer)

    def count(prompt: Any, row: Mapping[str, Any]) -> int | None:
        if media is not None and any(row.get(column) for column in PLACEHOLDERS):
            return media(prompt, row)
        if not isinstance(prompt, str):
            prompt = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        return len(tokenizer.encode(prompt, add_special_tokens=False, verbose=False))

    return count


def _media_counter(directory: Path, tokenizer: Any) -> Tokenize | None:
    """`load_counter` for rows with media; None where the model reads text alone."""
    if not (directory / "preprocessor_config.json").is_file():
        return None
    from relax_engine.multimodal.content import MediaError, read_medium
    from relax_engine.multimodal.media import MediaMismatchError
    from relax_engine.multimodal.processor import MediaProcessor
    from relax_engine.multimodal.prompts import COLUMNS, column_media, marked, media_parts

    processor, reader = MediaProcessor(directory, tokenizer=tokenizer), MediaReader(None)

    def count(prompt: Any, row: Mapping[str, Any]) -> int | None:
        try:
            given = column_media(row, {str(kind): column for kind, column in COLUMNS.items()})
            media = {kind: [read_medium(kind, item, reader) for item in items] for kind, items in given.items()}
            if isinstance(prompt, str):
                text = marked(prompt, processor.marker)
            else:
                messages, _ = media_parts(prompt)
                text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
            return len(processor.encode(text, media).tokens)
        except (MediaError, MediaMismatchError):
            return None

    return count


def context_of(directory: str | Path) -> int | None:
    """Longest prompt that leaves room for one response token, from `max_position_embeddings`; None if not stated."""
    config = Path(directory) / "config.json"
    if not config.is_file():
        return None
    values = json.loads(config.read_text())
    values = values.get("thinker_config") or values
    context = (values.get("text_config") or values).get("max_position_embeddings")
    return int(context) - 1 if context else None
