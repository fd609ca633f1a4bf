"""Loading a tokenizer from a model directory, without asking any hub."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from relax_engine.errors import RelaxError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(directory: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hugging Face model directory.

    Raises:
        RelaxError: the directory holds none.
    """
    from transformers import AutoTokenizer

    if not (Path(directory) / "tokenizer_config.json").is_file():
        raise RelaxError(
            f"--hf-checkpoint {directory!r} has no tokenizer_config.json; give a directory with a tokenizer"
        )
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    return tokenizer


@functools.cache
def cached_tokenizer(directory: str) -> PreTrainedTokenizerBase:
    """The same, read once in a process."""
    return load_tokenizer(directory)
