"""A checkpoint of one layout goes on in another: the next losses are those of the run that was not interrupted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from worlds import make_batch, make_checkpoint, make_settings, run_world, share, step

from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.backends.megatron.settings import ParallelLayout

BATCH = make_batch([23, 9, 31, 14, 6, 27, 12], [11, 4, 0, 13, 2, 20, 1])
STEPS = 3


class Layout(NamedTuple):
    """Processes, how the model is spread over them, and whether the optimizer is as well."""

    size: int
    parallel: ParallelLayout
    distributed: bool

    def __str__(self) -> str:
        layout = self.parallel
        sizes = f"tp{layout.tensor}-pp{layout.pipeline}-cp{layout.context}-dp{layout.data_parallel(self.size)}"
        return f"{sizes}{'-sp' if layout.sequence_parallel else ''}{'-distributed' if self.distributed else ''}"


LAYOUTS = [
    Layout(parallel.model_parallel * data, parallel, distributed)
    for parallel in (
        ParallelLayout(),
        ParallelLayout(2),
        ParallelLayout(2, True),
        ParallelLayout(pipeline=2),
        ParallelLayout(context=2),
        ParallelLayout(2, True, pipeline=2),
    )
    for data in (1, 2)
    for distributed in (False, True)
    if parallel.model_parallel * data <= 4
]
PAIRS = random.Random(6).sample([(one, two) for one in LAYOUTS for two in LAYOUTS if one != two], 12)
QUICK = [
    (Layout(2, ParallelLayout(2, True), True), Layout(2, ParallelLayout(), True)),
    (Layout(2, ParallelLayout(), True), Layout(2, ParallelLayout(2), False)),
]


def _continue(backend: MegatronBackend) -> list[tuple[float, float]]:
    metrics = [step(backend, share(BATCH, backend)) for _ in range(STEPS)]
    backend.close()
    return [(each["loss"], each["grad_norm"]) for each in metrics]


def _save(rank: int, size: int, init: str, settings: Any, directory: str) -> list[tuple[float, float]]:
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    backend.load_hf(settings.hf_checkpoint)
    for _ in range(2):
        step(backend, share(BATCH, backend))
    backend.save(directory, extra={})
    return _continue(backend)


def _load(rank: int, size: int, init: str, settings: Any, directory: str) -> list[tuple[float, float]]:
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    backend.load(directory, optimizer=True)
    return _continue(backend)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("hf"), tied=True)


def _settings(checkpoint: Path, layout: Layout) -> Any:
    schedule = {"lr_decay_style": "cosine", "lr_decay_iters": 9, "lr_warmup_iters": 1}
    return make_settings(
        checkpoint, layout.parallel, optimizer={"use_distributed_optimizer": layout.distributed, **schedule}
    )


def _check(checkpoint: Path, directory: Path, one: Layout, two: Layout) -> None:
    saved = run_world(_save, one.size, _settings(checkpoint, one), str(directory))
    loaded = run_world(_load, two.size, _settings(checkpoint, two), str(directory))
    expected = [value for pair in saved[0] for value in pair]
    assert len(expected) == 2 * STEPS
    for answer in loaded:
        assert [value for pair in answer for value in pair] == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("one", "two"), QUICK, ids=[f"{one}-to-{two}" for one, two in QUICK])
def test_the_distributed_optimizer_is_resharded(checkpoint: Path, tmp_path: Path, one: Layout, two: Layout) -> None:
    _check(checkpoint, tmp_path / "iter", one, two)


@pytest.mark.long
@pytest.mark.parametrize(("one", "two"), PAIRS, ids=[f"{one}-to-{two}" for one, two in PAIRS])
def test_random_pairs_of_layouts(checkpoint: Path, tmp_path: Path, one: Layout, two: Layout) -> None:
    _check(checkpoint, tmp_path / "iter", one, two)
