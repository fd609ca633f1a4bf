"""Which failure is followed by a restart, how often, and what ends the run."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from relax_engine.components.train_group import RankLostError, TrainGroupError
from relax_engine.config import RunConfig
from relax_engine.core.failure import RoleError, role_failure
from relax_engine.core.recovery import Keeper, RunInterruptedError, lost_with, until_done
from relax_engine.core.resume import ResumePoint
from relax_engine.core.service import Service
from relax_engine.core.watch import Watch
from relax_engine.stream.errors import StreamUnavailableError
from relax_engine.weight_sync.messages import WeightSyncError


class Role:
    """A role's loop that raises the given errors one after the other, and then ends."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.errors = list(errors)
        self.runs = 0

    async def run(self) -> dict[str, Any]:
        self.runs += 1
        error = self.errors.pop(0) if self.errors else None
        if error is None:
            return {"phases": [], "stopped": False}
        await asyncio.sleep(0)
        raise error


def keeper_of(
    role: Role, run_dir: Path, *, tolerant: bool = True, restart: Callable[[str], Any] | None = None
) -> tuple[Keeper, list[str]]:
    restarted: list[str] = []

    async def note(name: str) -> None:
        restarted.append(name)
        if restart is not None:
            restart(name)

    services = cast(dict[str, Service], {"actor": role})
    watch = Watch(services, cast(Any, None), run_dir, progress_timeout_s=60)
    keeper = Keeper(
        services, watch, run_dir, tolerant=tolerant, restart=note, arguments=lambda name: (), tell=lambda event: None
    )
    return keeper, restarted


INTERRUPTED = [
    ActorDiedError(),
    RankLostError("actor: the process of rank 1 died"),
    StreamUnavailableError("put: the stream controller is dead"),
    WeightSyncError("not one receiver committed"),
    RayTaskError("run", "traceback", RankLostError("rank 0")),
]


@pytest.mark.parametrize("error", INTERRUPTED, ids=lambda error: type(error).__name__)
async def test_a_role_whose_process_died_is_started_again(error: Exception, tmp_path: Path) -> None:
    role = Role(error)
    keeper, restarted = keeper_of(role, tmp_path)
    assert await keeper.keep("actor") == {"phases": [], "stopped": False}
    assert (role.runs, restarted) == (2, ["actor"])


@pytest.mark.parametrize("error", [ValueError("shape"), TrainGroupError("rank 1 failed"), KeyError("no such answer")])
async def test_what_would_happen_again_ends_the_run_at_once(error: Exception, tmp_path: Path) -> None:
    keeper, restarted = keeper_of(Role(error), tmp_path)
    with pytest.raises(RoleError, match="role 'actor' failed") as raised:
        await keeper.keep("actor")
    assert (raised.value.interrupted, restarted) == (False, [])


async def test_without_the_flag_nothing_is_started_again(tmp_path: Path) -> None:
    keeper, restarted = keeper_of(Role(ActorDiedError()), tmp_path, tolerant=False)
    with pytest.raises(RoleError):
        await keeper.keep("actor")
    assert restarted == []


async def test_a_role_that_dies_four_times_within_one_step_ends_the_run(tmp_path: Path) -> None:
    role = Role(*(ActorDiedError() for _ in range(9)))
    keeper, restarted = keeper_of(role, tmp_path)
    with pytest.raises(RoleError) as raised:
        await keeper.keep("actor")
    assert (raised.value.interrupted, len(restarted), role.runs) == (True, 3, 4)


async def test_every_finished_step_gives_a_role_its_restarts_back(tmp_path: Path) -> None:
    role = Role(*(ActorDiedError() for _ in range(20)))
    keeper, restarted = keeper_of(role, tmp_path, restart=lambda _: len(restarted) % 3 or keeper.step_finished())
    await keeper.keep("actor")
    assert len(restarted) == 20


async def test_a_restart_that_cannot_help_ends_the_run_as_interrupted(tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        raise RunInterruptedError(f"role {name!r} cannot be started again alone")

    keeper, restarted = keeper_of(Role(ActorDiedError()), tmp_path, restart=refuse)
    with pytest.raises(RunInterruptedError, match="cannot be started again alone"):
        await keeper.keep("actor")
    assert restarted == ["actor"]


async def test_a_condemned_role_is_started_again_though_its_loop_goes_on(tmp_path: Path) -> None:
    class Stuck(Role):
        async def run(self) -> dict[str, Any]:
            self.runs += 1
            if self.runs == 1:
                await asyncio.sleep(60)
            return {}

    role = Stuck()
    keeper, restarted = keeper_of(role, tmp_path)
    task = asyncio.create_task(keeper.keep("actor"))
    await asyncio.sleep(0.01)
    keeper.condemn("actor", RoleError("role 'actor' has not answered for 121 s", interrupted=True))
    await asyncio.wait_for(task, 5)
    assert (role.runs, restarted) == (2, ["actor"])


def test_the_failure_says_whether_trying_again_may_help(tmp_path: Path) -> None:
    assert role_failure("actor", RayTaskError("f", "t", RankLostError("rank 1 died")), tmp_path).interrupted
    assert not role_failure("actor", RayTaskError("f", "t", ValueError("x")), tmp_path).interrupted


@pytest.mark.parametrize(
    ("role", "flags", "lost"),
    [
        ("actor", {"save": "ckpt"}, None),
        ("actor", {}, "no checkpoint"),
        ("reference", {"save": "ckpt"}, None),
        ("reference", {"ref_update_interval": 2}, None),
        ("actor_fwd", {"keep_old_actor": True}, "copies of older weights"),
        ("rollout", {}, None),
        ("rollout", {"rollout_function_path": "mine.rollout"}, "the function of --rollout-function-path"),
        ("advantages", {}, None),
        ("critic", {"advantage_estimator": "ppo"}, "the actor and the critic take together"),
    ],
)
def test_what_a_role_takes_with_it(role: str, flags: dict[str, Any], lost: str | None) -> None:
    config = RunConfig.from_flat(hf_checkpoint="m", prompt_data=["p"], num_rollout=1, **flags)
    reason = lost_with(role, config)
    assert reason is None if lost is None else reason is not None and lost in reason


class Run:
    """A run that is interrupted at given steps, and saves a checkpoint at every fourth."""

    def __init__(self, *interruptions: int, interrupted: bool = True) -> None:
        self.interruptions = list(interruptions)
        self.interrupted = interrupted
        self.saved: int | None = None
        self.began: list[int] = []

    def run_from(self, point: ResumePoint) -> str:
        self.began.append(point.iteration)
        if not self.interruptions:
            return "done"
        step = self.interruptions.pop(0)
        if step - step % 4 > point.iteration:
            self.saved = step - step % 4
        raise RoleError(f"died in step {step}", interrupted=self.interrupted)

    def newest(self) -> ResumePoint | None:
        return None if self.saved is None else ResumePoint(self.saved, f"iter_{self.saved}")


def test_a_run_begins_again_at_its_newest_checkpoint() -> None:
    run, told = Run(2, 6, 13), list[Mapping[str, Any]]()
    assert until_done(run.run_from, ResumePoint(), run.newest, 3, told.append) == "done"
    assert run.began == [0, 0, 4, 12]
    assert [(event["kind"], event["step"], event["reason"]) for event in told] == [
        ("run_restarted", 0, "died in step 2"),
        ("run_restarted", 4, "died in step 6"),
        ("run_restarted", 12, "died in step 13"),
    ]


def test_a_new_checkpoint_gives_a_run_its_restarts_back() -> None:
    run = Run(1, 2, 5, 6, 9)
    assert until_done(run.run_from, ResumePoint(), run.newest, 2, lambda event: None) == "done"
    assert run.began == [0, 0, 0, 4, 4, 8]


def test_a_run_that_saves_nothing_new_is_given_up() -> None:
    run = Run(5, 6, 7, 6)
    with pytest.raises(RoleError, match="died in step 7"):
        until_done(run.run_from, ResumePoint(), run.newest, 2, lambda event: None)
    assert run.began == [0, 4, 4]


def test_a_run_that_would_fail_again_is_not_started_again() -> None:
    run = Run(5, interrupted=False)
    with pytest.raises(RoleError, match="died in step 5"):
        until_done(run.run_from, ResumePoint(), run.newest, 2, lambda event: None)
    assert run.began == [0]
