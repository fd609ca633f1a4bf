"""Token ids as texts, for people who look at samples; ids where the run's tokenizer is not at hand."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


class TokenTexts:
    """Texts of single tokens, by the `tokenizer.json` of a Hugging Face directory."""

    def __init__(self, checkpoint: str | None) -> None:
        self._tokenizer: Any = None
        path = None if checkpoint is None else Path(checkpoint, "tokenizer.json")
        if path is not None and path.is_file():
            from tokenizers import Tokenizer

            try:
                self._tokenizer = Tokenizer.from_file(str(path))
            except Exception as error:  # noqa: BLE001 - the package raises Exception itself; ids are shown then
                logger.warning("%s cannot be read: %s", path, error)

    def texts(self, tokens: Sequence[int]) -> list[str]:
        """One text a token."""
        if self._tokenizer is None:
            return [f"⟨{token}⟩" for token in tokens]
        return [self._tokenizer.decode([token], skip_special_tokens=False) or f"⟨{token}⟩" for token in tokens]
