from typing import Any

import pytest


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A byte-level tokenizer with ChatML's template: one token per byte, one per role line."""
    from examples.tiny_math.make_model import build_tokenizer

    return build_tokenizer()
