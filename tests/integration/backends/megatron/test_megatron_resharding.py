"""A checkpoint of one layout goes on in another: the next losses are those of the run that was not interrupted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from worlds import EXPERTS, LATENT, make_batch, make_checkpoint, make_settings, run_world, share, step

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
        if layout.expert > 1 or layout.experts_tensor != layout.tensor:
            sizes += f"-ep{layout.expert}-etp{layout.experts_tensor}"
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
WITH_EXPERTS = [
    Layout(size, parallel, distributed)
    for size, parallel in (
        (1, ParallelLayout()),
        (2, ParallelLayout()),
        (2, ParallelLayout(2, True)),
        (2, ParallelLayout(expert=2)),
        (2, ParallelLayout(2, True, expert=2, expert_tensor=1)),
        (4, ParallelLayout(expert=4)),
        (4, ParallelLayout(pipeline=2, expert=2)),
        (4, ParallelLayout(2, True, expert=2, expert_tensor=1)),
    )
    for distributed in (False, True)
]
EXPERT_PAIRS = random.Random(7).sample(
    [(a, b) for a in WITH_EXPERTS for b in WITH_EXPERTS if a.parallel.expert != b.parallel.expert], 8
)
PAIRS = random.Random(6).sample([(one, two) for one in LAYOUTS for two in LAYOUTS if one != two], 12)
QUICK = [
    (Layout(2, ParallelLayout(2, True), True), Layout(2, ParallelLayout(), True)),
    (Layout(2, ParallelLayout(), True), Layout(2, ParallelLayout(2), False)),
]
QUICK_EXPERTS = (Layout(2, ParallelLayout(expert=2), True), Layout(2, ParallelLayout(2, True), True))


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


@pytest.fixture(scope="module")
def with_experts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model whose layers are alike, and one whose first layer is dense, with a bias in the router."""
    directories = {family: tmp_path_factory.mktemp(family) for family in ("Qwen3Moe", "DeepseekV3")}
    for family, options in zip(directories, (EXPERTS, {**LATENT, "n_group": 2, "topk_group": 1}), strict=True):
        make_checkpoint(directories[family], family, **options)
    return directories


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


@pytest.mark.parametrize("family", ["Qwen3Moe", "DeepseekV3"])
def test_experts_and_their_optimizer_are_resharded(with_experts: dict[str, Path], tmp_path: Path, family: str) -> None:
    _check(with_experts[family], tmp_path / "iter", *QUICK_EXPERTS)


@pytest.mark.long
@pytest.mark.parametrize("family", ["Qwen3Moe", "DeepseekV3"])
@pytest.mark.parametrize(("one", "two"), EXPERT_PAIRS, ids=[f"{one}-to-{two}" for one, two in EXPERT_PAIRS])
def test_random_pairs_of_layouts_of_experts(
    with_experts: dict[str, Path], tmp_path: Path, one: Layout, two: Layout, family: str
) -> None:
    _check(with_experts[family], tmp_path / "iter", one, two)


@pytest.mark.long
@pytest.mark.parametrize(("one", "two"), PAIRS, ids=[f"{one}-to-{two}" for one, two in PAIRS])
def test_random_pairs_of_layouts(checkpoint: Path, tmp_path: Path, one: Layout, two: Layout) -> None:
    _check(checkpoint, tmp_path / "iter", one, two)
