"""The models of the modes against steps that can be computed by hand."""

from typing import Any

import pytest

from relax_engine.simulation import Plan, PlanError, SimulationResult, simulate

PHASES = {"actor_fwd": 2.0, "reference": 3.0, "advantages": 0.5, "train": 5.0, "weight_sync": 1.0, "other": 0.25}


def run(**fields: Any) -> SimulationResult:
    return simulate({"rollout_batch_size": 8, "generation": 4.0, "train": 5.0, **fields}, steps=30)


def test_colocate_is_the_sum_of_its_phases() -> None:
    result = run(mode="colocate", reward=0.5, **PHASES)
    assert result.step_time == pytest.approx(4.0 + 0.5 + sum(PHASES.values()))
    assert result.wait_time == pytest.approx(4.5)
    assert result.phase_seconds == {"generation": pytest.approx(4.5), **PHASES}
    assert result.utilization["rollout"] == pytest.approx(4.5 / result.step_time)
    assert result.staleness == {0: 1.0}


def test_colocate_generates_in_waves_of_its_slots() -> None:
    """Eight requests of 4 s, three at a time: the last ends after three rounds."""
    assert run(mode="colocate", concurrency=3).wait_time == pytest.approx(12.0)
    assert run(mode="colocate", request_groups=8, concurrency=3).wait_time == pytest.approx(4.0)


@pytest.mark.parametrize(("partial", "step"), [(False, 6.0), (True, 6.0)])
def test_over_sampling_trains_the_first_that_finish(partial: bool, step: float) -> None:
    """Twelve groups for eight, constant times: nothing is left to carry on."""
    result = run(mode="colocate", over_sampling_batch_size=12, partial_rollout=partial, generation=1.0)
    assert result.step_time == pytest.approx(step)


def test_partial_rollout_keeps_what_is_generated() -> None:
    """Slow groups that start again in every step are never trained; those that go on are, one version later."""
    slow = {"mode": "colocate", "over_sampling_batch_size": 16, "generation": [1.0, 1.0, 1.0, 3.0], "train": 1.0}
    assert run(**slow, partial_rollout=False).staleness == {0: 1.0}
    kept = run(**slow, partial_rollout=True)
    assert kept.mean_staleness > 0.1
    assert kept.step_time == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(("staleness", "step"), [(0, 9.0), (1, 5.0), (3, 5.0)])
def test_fully_async_takes_the_longer_side_once_it_may_run_ahead(staleness: int, step: float) -> None:
    result = run(max_staleness=staleness)
    assert result.step_time == pytest.approx(step)
    assert result.utilization["actor"] == pytest.approx(5.0 / step)
    # The trainer is the slower side: every sample waits as long as it may.
    assert result.staleness == {staleness: 1.0}


def test_a_weight_sync_holds_both_sides_up() -> None:
    """Generation stands still meanwhile, so neither side can hide it."""
    assert run(max_staleness=1, train=4.0, weight_sync=1.0).step_time == pytest.approx(5.0)
    assert run(max_staleness=0, train=4.0, weight_sync=1.0).step_time == pytest.approx(9.0)


def test_a_slot_is_taken_until_the_end_of_its_step() -> None:
    """Two steps' slots, each taken for 6 of generation and 5 of the actor: 11 for two steps."""
    assert run(max_staleness=1, generation=6.0, train=4.0, other=1.0).step_time == pytest.approx(5.5)
    assert run(max_staleness=2, generation=6.0, train=4.0, other=1.0).step_time == pytest.approx(5.0)


def test_the_busiest_role_sets_the_pace() -> None:
    result = run(max_staleness=2, **{**PHASES, "reference": 9.0})
    assert result.step_time == pytest.approx(9.0)
    assert result.utilization["reference"] == pytest.approx(1.0)
    assert result.utilization["actor_fwd"] == pytest.approx(2.0 / 9.0)


def test_hybrid_computes_forward_passes_in_the_actor() -> None:
    result = run(mode="hybrid", max_staleness=2, **PHASES)
    assert result.step_time == pytest.approx(sum(PHASES.values()))
    assert set(result.utilization) == {"rollout", "actor"}


@pytest.mark.parametrize(("streaming", "step"), [(False, 12.0), (True, 9.0)])
def test_streaming_trains_parts_as_they_come(streaming: bool, step: float) -> None:
    """One slot makes a group a second; four parts of two train for a second each; on policy, so nothing overlaps."""
    result = run(concurrency=1, generation=1.0, train=4.0, num_iters_per_train_update=4, streaming=streaming)
    assert result.step_time == pytest.approx(step)


def test_parts_let_forward_roles_start_early() -> None:
    """Groups a second apart, a reference pass of half a second each: all but the last pass hide behind generation."""
    whole = run(concurrency=1, generation=1.0, reference=4.0)
    parts = run(concurrency=1, generation=1.0, reference=4.0, num_iters_per_train_update=8, streaming=False)
    assert whole.step_time == pytest.approx(8.0 + 4.0 + 5.0)
    assert parts.step_time == pytest.approx(8.0 + 0.5 + 5.0)


def test_rows_travel_from_role_to_role() -> None:
    """Rollout to reference to advantages to actor: three ways. In hybrid mode one."""
    assert run(reference=1.0, handover=0.25).step_time == pytest.approx(4.0 + 1.0 + 5.0 + 3 * 0.25)
    assert run(mode="hybrid", reference=1.0, handover=0.25).step_time == pytest.approx(4.0 + 1.0 + 5.0 + 0.25)


def test_slots_limit_generation() -> None:
    """Eight groups of 4 s in two slots are 16 s of generation a step."""
    result = run(max_staleness=1, concurrency=2)
    assert result.step_time == pytest.approx(16.0)
    assert result.utilization["rollout"] == pytest.approx(1.0)
    assert result.mean_staleness < 1.0


def test_more_devices_shorten_all_but_the_fixed_share() -> None:
    train = {"seconds": 8.0, "devices": 4, "fixed": 0.5}
    plan = {"rollout_batch_size": 4, "max_staleness": 1, "generation": 0.1, "train": train}
    assert simulate({**plan, "resource": {"actor": 8}}).step_time == pytest.approx(6.0)
    assert simulate({**plan, "resource": {"actor": 2}}).step_time == pytest.approx(12.0)
    assert simulate(plan).step_time == pytest.approx(8.0)


def test_a_fraction_of_staleness_lets_a_fraction_run_ahead() -> None:
    """Half a batch ahead: half the samples are one version old."""
    assert run(max_staleness=0.5).staleness == {0: 0.5, 1: 0.5}


def test_the_same_seed_gives_the_same_result() -> None:
    plan = {"rollout_batch_size": 8, "max_staleness": 2, "generation": {"seconds": 1.0, "sigma": 1.0}, "train": 1.0}
    assert simulate(plan, seed=3) == simulate(plan, seed=3)
    assert simulate(plan, seed=3) != simulate(plan, seed=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": -1.0}, r"plan: train.seconds: .* greater than or equal to 0"),
        ({"generaton": 1.0}, r"plan: generaton: Extra inputs"),
        (
            {"resource": {"critic": 1}},
            r"resource names \['critic'\], but fully_async gives devices to rollout",
        ),
        ({"mode": "colocate", "max_staleness": 1}, "colocate generates nothing ahead"),
        ({"over_sampling_batch_size": 9}, "simulated in colocate only, not in fully_async"),
        ({"mode": "colocate", "over_sampling_batch_size": 7}, "=7 is less than rollout_batch_size=8"),
        ({"request_groups": 3}, "request_groups=3 does not divide rollout_batch_size=8"),
        (
            {"max_staleness": 20},
            "the first 42 steps of max_staleness=20 are left out .* at least 43",
        ),
    ],
)
def test_plans_that_describe_no_run(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        run(**changes)


def test_a_plan_from_a_file(tmp_path: Any) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("rollout_batch_size: 8\ngeneration: {seconds: 2, sigma: 0.5}\ntrain: [1, 3]\n")
    plan = Plan.of(path)
    assert (plan.generation.sigma, plan.train.mean, plan.replace(train=4).train.seconds) == (0.5, 2.0, 4.0)
    with pytest.raises(PlanError, match=r"cannot read a plan from .*missing\.yaml"):
        Plan.of(tmp_path / "missing.yaml")
    path.write_text("7")
    with pytest.raises(PlanError, match="a plan is a mapping of fields, got int"):
        Plan.of(path)
