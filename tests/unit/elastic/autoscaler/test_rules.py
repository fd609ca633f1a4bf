"""The documented thresholds, each from just below and just above, and the bounds that nothing may cross."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from series import end, metrics, window

from relax_engine.elastic.autoscaler.config import AutoscalerConfig
from relax_engine.elastic.autoscaler.prometheus import EngineMetrics
from relax_engine.elastic.autoscaler.rules import Action, Decision, conditions, decide
from relax_engine.elastic.autoscaler.window import Observation, Window

CONFIG = AutoscalerConfig()
CALM = metrics()


def decision(
    series: Sequence[Sequence[EngineMetrics] | None], *, last: float | None = None, **changes: object
) -> Decision:
    made = window(series, **changes)
    return decide(made, CONFIG, end(made), last)


def held(series: Sequence[Sequence[EngineMetrics] | None], name: str, action: Action, **changes: object) -> bool:
    found = conditions(window(series, **changes), CONFIG)
    return next(one.holds for one in found if (one.name, one.direction) == (name, action))


def of_engines(count: int, seconds: float, **values: float) -> list[list[EngineMetrics]]:
    """The same metrics of every engine over that time."""
    return [[metrics(**values)] * count] * (int(seconds // 10) + 1)


# -- adding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("usage", "seconds", "holds"), [(0.86, 30, True), (0.85, 30, False), (0.86, 20, False)])
def test_high_usage_for_thirty_seconds(usage: float, seconds: float, holds: bool) -> None:
    assert held(of_engines(2, seconds, usage=usage), "token_usage", Action.OUT) is holds


def test_a_break_starts_the_thirty_seconds_anew() -> None:
    busy, calm = [metrics(0.9)], [metrics(0.8)]
    assert not held([busy] * 4 + [calm] + [busy] * 3, "token_usage", Action.OUT)
    assert held([calm] + [busy] * 4, "token_usage", Action.OUT)


def test_looks_that_failed_break_it_only_when_they_are_many() -> None:
    busy = [metrics(0.9)]
    assert held([busy, None, None, busy, busy], "token_usage", Action.OUT)
    assert not held([busy, None, None, None, busy, busy], "token_usage", Action.OUT)


@pytest.mark.parametrize(("queued", "holds"), [((10, 10), False), ((10, 11), True), ((0, 21), True), ((20, 0), False)])
def test_more_than_ten_waiting_requests_per_engine(queued: tuple[int, int], holds: bool) -> None:
    assert held([[metrics(queued=count) for count in queued]], "queued_per_engine", Action.OUT) is holds


@pytest.mark.parametrize(("slow", "holds"), [(4, False), (6, True)])
@pytest.mark.parametrize(
    ("name", "field", "long", "short"), [("queue_time_p95", "waits", 5.5, 0.5), ("ttft_p95", "ttft", 11.0, 0.5)]
)
def test_one_in_twenty_slow_requests_of_the_last_minute(
    slow: int, holds: bool, name: str, field: str, long: float, short: float
) -> None:
    """4 of 100 leave the 95th percentile where the fast ones are, 6 of 100 do not; those before do not count."""
    before = [long] * 1000
    recent = [long] * slow + [short] * (100 - slow)
    series = [[metrics(**{field: before})]] + [[metrics(**{field: before + recent})]] * 6
    assert held(series, name, Action.OUT) is holds
    assert held([*series, *[series[-1]] * 6], name, Action.OUT) is False  # a minute later, nothing new


def test_percentiles_of_an_engine_that_started_anew() -> None:
    series = [[metrics(waits=[5.5] * 1000)], [metrics(waits=[0.5] * 100)]]
    assert not held(series, "queue_time_p95", Action.OUT)


@pytest.mark.parametrize(
    ("usage", "queued", "engines", "target"),
    [
        (0.86, 0, 2, 4),  # ceil(1.6)
        (0.90, 0, 2, 4),  # exactly 2
        (0.91, 0, 2, 5),
        (0.50, 11, 1, 2),  # by queue 0, but at least one
        (0.50, 25, 1, 2),  # (25 - 5) // 20
        (0.50, 45, 1, 3),  # (45 - 5) // 20
        (0.50, 1000, 1, 5),  # not more than four
        (1.00, 1000, 30, 32),  # not more than 32 engines
    ],
)
def test_steps(usage: float, queued: int, engines: int, target: int) -> None:
    made = decision(of_engines(engines, 30, usage=usage, queued=queued))
    assert (made.action, made.engines, made.target) == (Action.OUT, engines, target)


@pytest.mark.parametrize(("since", "action"), [(59, Action.HOLD), (60, Action.OUT)])
def test_a_minute_between_actions_before_engines_are_added(since: float, action: Action) -> None:
    assert decision(of_engines(2, 30, usage=0.9), last=30.0 - since).action is action


def test_no_engine_beyond_the_most() -> None:
    made = decision(of_engines(32, 30, usage=0.99))
    assert made.action is Action.HOLD
    assert made.reason == "token_usage 0.99 (bound 0.85), but there are max_engines 32"


# -- removing ----------------------------------------------------------------------------------------


def test_one_engine_goes_when_all_is_quiet() -> None:
    made = decision(of_engines(4, 120, usage=0.29))
    assert (made.action, made.target) == (Action.IN, 3)


@pytest.mark.parametrize(
    ("name", "series"),
    [
        ("token_usage", of_engines(4, 120, usage=0.3)),
        ("token_usage", of_engines(4, 110, usage=0.1)),
        ("queued", [*of_engines(4, 120, usage=0.1), [metrics(0.1, queued=1), *[metrics(0.1)] * 3]]),
        ("throughput_variation", of_engines(4, 60, usage=0.1) + of_engines(4, 60, usage=0.1, throughput=130.0)),
        ("projected_usage", of_engines(2, 120, usage=0.25)),
    ],
)
def test_each_condition_alone_keeps_all_engines(name: str, series: list[list[EngineMetrics]]) -> None:
    found = conditions(window(series), CONFIG)
    assert [one.name for one in found if one.direction is Action.IN and not one.holds] == [name]
    assert decision(series).action is Action.HOLD


def test_just_below_the_projection() -> None:
    assert held(of_engines(2, 120, usage=0.249), "projected_usage", Action.IN)
    assert held(of_engines(3, 120, usage=0.299), "projected_usage", Action.IN)


def test_idle_engines_have_no_variation() -> None:
    assert held(of_engines(2, 120, usage=0.0, throughput=0.0), "throughput_variation", Action.IN)


def test_no_engine_goes_while_one_is_silent() -> None:
    made = decision(of_engines(4, 120, usage=0.1), silent=["http://engine-9"])
    assert (made.action, made.reason) == (Action.HOLD, "within bounds")


@pytest.mark.parametrize(("since", "action"), [(299, Action.HOLD), (300, Action.IN)])
def test_five_minutes_between_actions_before_an_engine_is_removed(since: float, action: Action) -> None:
    assert decision(of_engines(4, 120, usage=0.1), last=120.0 - since).action is action


def test_initial_engines_stay() -> None:
    made = decision(of_engines(3, 120, usage=0.1), initial=3)
    assert (made.action, made.reason) == (Action.HOLD, "idle, but 3 engines stay")


# -- neither -----------------------------------------------------------------------------------------


def test_nothing_is_decided_without_metrics_or_on_old_ones() -> None:
    assert decide(window([]), CONFIG, 0.0, None).reason == "no metrics"
    old = window(of_engines(2, 60, usage=0.99))
    assert decide(old, CONFIG, end(old) + 30.0, None).action is Action.OUT
    assert decide(old, CONFIG, end(old) + 30.1, None).reason == "no metrics"


def test_nothing_is_decided_while_engines_come_or_go() -> None:
    assert decision(of_engines(2, 30, usage=0.99), changing=True).reason == "engines are joining or leaving"


def test_fewer_engines_than_the_fewest() -> None:
    config = AutoscalerConfig(min_engines=3)
    made = window(of_engines(1, 0), config)
    assert (decide(made, config, 0.0, None).target, decide(made, config, 0.0, None).reason) == (
        3,
        "fewer than min_engines",
    )


LOADS = st.tuples(st.floats(0, 1), st.integers(0, 300), st.floats(0, 500))


@settings(max_examples=60, deadline=None)
@given(
    loads=st.lists(LOADS, min_size=5, max_size=120),
    bounds=st.tuples(st.integers(1, 6), st.integers(6, 12)),
    cooldowns=st.tuples(st.sampled_from([0, 30, 60]), st.sampled_from([0, 60, 300])),
    start=st.integers(1, 12),
)
def test_any_load_stays_within_bounds_and_cooldowns(
    loads: list[tuple[float, int, float]], bounds: tuple[int, int], cooldowns: tuple[int, int], start: int
) -> None:
    """A fleet that does what it is told, under random load: targets, distances of actions, steps."""
    fewest, most = bounds
    config = AutoscalerConfig.model_validate(
        {
            "min_engines": fewest,
            "max_engines": most,
            "scale_out": {"cooldown": cooldowns[0]},
            "scale_in": {"cooldown": cooldowns[1], "token_usage_duration": 20, "throughput_variation": 10.0},
        }
    )
    engines, last = start, None
    seen = Window(config.memory, config.longest_gap)
    for number, (usage, queued, throughput) in enumerate(loads):
        now = 10.0 * number
        found = {f"e{index}": metrics(usage, queued / engines, throughput) for index in range(engines)}
        seen.add(Observation(now, found, engines=engines, initial=1))
        made = decide(seen, config, now, last)
        assert made.engines == engines
        if made.action is Action.HOLD:
            assert made.target == engines
            continue
        cooldown = config.scale_out.cooldown if made.action is Action.OUT else config.scale_in.cooldown
        assert last is None or now - last >= cooldown
        if made.action is Action.OUT:
            assert engines < made.target <= min(engines + 4, most)
        else:
            assert made.target == engines - 1 >= fewest
        engines, last = made.target, now
