from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relax_engine.backends.engines.launch import EngineProcess, launch_engine


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of a million parameters with a byte-level tokenizer."""
    from examples.tiny_math.make_model import make_model

    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> Any:
    from relax_engine.rollout.tokenizer import load_tokenizer

    return load_tokenizer(str(model))


@pytest.fixture(scope="session")
def engines(model: Path) -> Iterator[list[EngineProcess]]:
    """Two engines with the same weights; each test leaves them idle and with these weights."""
    with launch_engine(model, max_total_tokens=40000) as one, launch_engine(model, max_total_tokens=40000) as two:
        yield [one, two]
