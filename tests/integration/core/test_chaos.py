"""Processes of a run killed one after the other: nothing is lost, nothing is trained twice, and the run ends."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from chaos import ChaosRun

ASYNC: dict[str, Any] = {
    "fully_async": True,
    "max_staleness": 1,
    "resource": {"actor": [1, 1], "rollout": [1, 1], "actor_fwd": [1, 1], "reference": [1, 1], "advantages": [1, 0]},
    "use_kl_loss": True,
    "kl_loss_coef": 0.01,
    "num_iters_per_train_update": 2,
}
SHORT = (("advantages", "stream_controller"), ("actor_rank",))
KINDS = (
    *(kind for kinds in SHORT for kind in kinds),
    *(
        "rollout",
        "engine",
        "actor",
        "actor_fwd",
        "actor_fwd_rank",
        "reference",
        "reference_rank",
        "storage_unit",
        "serve_controller",
    ),
)
ROWS = 16


@pytest.fixture
def chaos(tiny: Any, tmp_path: Path) -> Iterator[Callable[..., ChaosRun]]:
    """`chaos(steps, **flags)` starts a run; whatever of it is left at the end is ended."""
    runs = []

    def start(steps: int, **flags: Any) -> ChaosRun:
        run = ChaosRun(tiny, tmp_path, {"num_rollout": steps, "save": str(tmp_path / "ckpt"), **flags})
        runs.append(run)
        run.start()
        return run

    yield start
    for run in runs:
        run.stop()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_three_kinds_of_process_die_in_one_run(chaos: Callable[..., ChaosRun]) -> None:
    steps = len(SHORT) + 3
    run = chaos(steps, save_interval=4, **ASYNC)
    run.torment(SHORT, seed=0, recovery_s=120)
    run.finish(120)
    run.audit(steps, ROWS)


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_each_kind_of_process_dies_twenty_times(chaos: Callable[..., ChaosRun]) -> None:
    schedule = [(kind,) for kind in KINDS for _ in range(20)]
    Random(1).shuffle(schedule)
    steps = len(schedule) + 3
    run = chaos(steps, save_interval=5, max_actor_ckpt_to_keep=2, **ASYNC)
    run.torment(schedule, seed=1, recovery_s=120)
    run.finish(120)
    run.audit(steps, ROWS)
