"""Processes of a run killed one after the other: nothing is lost, nothing is trained twice, and the run ends."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos import ChaosRun
from chaos_parts import ASYNC, PARTS, Part

SHORT = (("advantages", "stream_controller"), ("actor_rank",))
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


@pytest.mark.timeout(600)
def test_three_kinds_of_process_die_in_one_run(chaos: Callable[..., ChaosRun]) -> None:
    steps = 12  # more than a run takes while a role of it is away
    run = chaos(steps, save_interval=4, **ASYNC)
    run.torment(SHORT, seed=0, recovery_s=120)
    run.finish(120)
    run.audit(steps, ROWS)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_each_kind_of_process_dies_twenty_times(part: Part, chaos: Callable[..., ChaosRun]) -> None:
    started = time.monotonic()
    seed = part.seed + len(recorded().get(part.name, []))
    run = chaos(part.steps, save_interval=part.save_interval, max_actor_ckpt_to_keep=2, **part.flags)
    budget_s = float(os.environ.get("RELAX_CHAOS_SECONDS", "inf"))
    run.torment(part.schedule(seed), seed, recovery_s=180, budget_s=budget_s)
    run.finish(240)
    run.audit(part.steps, ROWS)
    record(part.name, {"seed": seed, "seconds": round(time.monotonic() - started), **run.facts(part.steps, ROWS)})


def recorded() -> dict[str, list[Any]]:
    """Runs of each part so far, in the JSON file that `RELAX_CHAOS_RESULTS` names."""
    path = Path(os.environ.get("RELAX_CHAOS_RESULTS", ""))
    return json.loads(path.read_text()) if path.is_file() else {}


def record(name: str, facts: dict[str, Any]) -> None:
    """Add a run to that file, where it is named."""
    if path := os.environ.get("RELAX_CHAOS_RESULTS"):
        known = recorded()
        Path(path).write_text(
            json.dumps({**known, name: [*known.get(name, []), facts]}, indent=1, sort_keys=True) + "\n"
        )
