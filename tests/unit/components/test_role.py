"""What every role remembers of its work."""

from typing import Any, cast

from relax_engine import RunConfig
from relax_engine.components.role import PHASES_KEPT, Role, RoleContext
from relax_engine.stream.client import StreamClient


def role() -> Role:
    config = RunConfig.from_flat(hf_checkpoint="model", prompt_data=["prompts.parquet"], num_rollout=1)
    return Role(RoleContext(config, [], cast("StreamClient", None), "run", start_step=0, num_steps=1))


def test_a_long_run_does_not_grow_by_its_phases() -> None:
    long_lived = role()
    for number in range(PHASES_KEPT + 3):
        long_lived.step = number
        long_lived.record_phase("work", start=float(number))
    phases: list[Any] = long_lived.outcome()["phases"]
    assert len(phases) == PHASES_KEPT
    assert (phases[0].step, phases[-1].step) == (3, PHASES_KEPT + 2)


def test_the_phases_of_a_stretch_are_those_that_began_in_it() -> None:
    worker = role()
    for start in (1.0, 2.0, 3.0):
        worker.record_phase("work", start)
    assert [phase.start for phase in worker.phases_since(2.0)] == [2.0, 3.0]
