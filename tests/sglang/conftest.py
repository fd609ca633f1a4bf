"""SGLang's server and the embedded engine, with the same model, for the tests that ask both the same.

The server takes a minute to start and about 2 GB, so there is one at a time: the tests of runs, which start their own,
close it first (`Engines.close`). `make test-sglang` runs this folder.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sglang_suite import CONTEXT, FACTS, KEY, KINDS, Engines

from relax_engine.backends.engines.client import EngineClient
from tests.integration.backends.engines.engine_models import Reference


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two random models of one architecture: what is served at first, and other weights for it."""
    from examples.tiny_math.make_model import make_model

    root = tmp_path_factory.mktemp("models")
    return make_model(root / "old", seed=0, context=CONTEXT), make_model(root / "new", seed=1, context=CONTEXT)


@pytest.fixture(scope="session")
def old(models: tuple[Path, Path]) -> Reference:
    return Reference(models[0])


@pytest.fixture(scope="session")
def new(models: tuple[Path, Path]) -> Reference:
    return Reference(models[1])


@pytest.fixture(scope="session")
def engines(models: tuple[Path, Path]) -> Iterator[Engines]:
    both = Engines(models[0])
    yield both
    both.close()


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each test that takes this runs once with every kind."""
    return str(request.param)


@pytest.fixture
def url(engines: Engines, kind: str) -> str:
    """Where the engine of this kind answers; each test leaves it idle, unpaused and with its first weights."""
    return engines.get(kind).url


@pytest.fixture
async def client(url: str) -> AsyncIterator[EngineClient]:
    async with EngineClient(url, timeout_s=60, api_key=KEY) as one:
        yield one


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, value in FACTS.items():
        terminalreporter.write_line(f"{name}: {value}")
