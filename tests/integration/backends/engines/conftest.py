from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_models import Reference, make_model

from relax_engine.backends.engines.launch import EngineProcess, launch_engine


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    made: dict[tuple[str, bool, int], Path] = {}

    def make(kind: str, tied: bool = True, seed: int = 0) -> Path:
        key = (kind, tied, seed)
        if key not in made:
            made[key] = make_model(tmp_path_factory.mktemp("model"), kind, tied=tied, seed=seed)
        return made[key]

    return make


@pytest.fixture(scope="session")
def qwen3(model_of: Callable[..., Path]) -> Path:
    return model_of("qwen3")


@pytest.fixture(scope="session")
def reference(qwen3: Path) -> Reference:
    return Reference(qwen3)


@pytest.fixture(scope="session")
def engine(qwen3: Path) -> Iterator[EngineProcess]:
    """One engine that the tests of a session share; each test leaves it idle, unpaused, with its first weights."""
    with launch_engine(qwen3, max_total_tokens=20000, max_running_requests=64) as process:
        yield process
