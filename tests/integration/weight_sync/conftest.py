from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from examples.tiny_math.make_model import make_model
from relax_engine.backends.engines.launch import EngineProcess, launch_engine


@pytest.fixture(scope="session")
def old_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights that engines start with."""
    return make_model(tmp_path_factory.mktemp("old"), seed=0)


@pytest.fixture(scope="session")
def new_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights that are pushed."""
    return make_model(tmp_path_factory.mktemp("new"), seed=1)


@pytest.fixture(scope="module")
def launch(old_model: Path) -> Iterator[Callable[[int], list[EngineProcess]]]:
    """Start engines side by side; all end with the module."""
    started: list[EngineProcess] = []

    def launch(count: int) -> list[EngineProcess]:
        def one(_: int) -> EngineProcess:
            return launch_engine(old_model, max_total_tokens=16000)

        with ThreadPoolExecutor(count) as pool:
            engines = list(pool.map(one, range(count)))
        started.extend(engines)
        return engines

    yield launch
    for engine in started:
        engine.close()
