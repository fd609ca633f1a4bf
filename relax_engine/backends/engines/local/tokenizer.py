"""Text in and out, through the `tokenizers` library (no `transformers` import)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from relax_engine.backends.engines.local.errors import ModelError


class TextDecoder:
    """The tokenizer of a model directory."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer

        path = directory / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:
            # The library raises plain Exception for every malformed file.
            raise ModelError(f"{path} cannot be read as a tokenizer: {error}") from error
        self.eos_token_id = self._eos(directory)

    def _eos(self, directory: Path) -> int | None:
        path = directory / "tokenizer_config.json"
        if not path.is_file():
            return None
        token = json.loads(path.read_text()).get("eos_token")
        content = token.get("content") if isinstance(token, dict) else token
        return self._tokenizer.token_to_id(content) if isinstance(content, str) else None

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with the special tokens that the tokenizer adds."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of `ids`."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def decode_batch(self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        """Text of every row."""
        return list(self._tokenizer.decode_batch([list(row) for row in rows], skip_special_tokens=skip_special_tokens))


def load_text_decoder(directory: Path) -> TextDecoder | None:
    """The directory's tokenizer, or None when it has no `tokenizer.json`."""
    return TextDecoder(directory) if (directory / "tokenizer.json").is_file() else None
