"""The rules: from the window of metrics to a target number of engines. Pure, without clock and network.

Engines are added when any condition of `scale_out` holds, and one is removed when all of `scale_in` do. An action waits
until the cooldown of its kind has passed since the last action of either kind. Worked example, defaults, 2 engines:
usage 0.95 for 30 s -> ceil((0.95 - 0.7) / 0.1) = 3 more, target 5; usage 0.1 for 120 s, nobody waiting, steady
throughput, at least 300 s later -> 0.1 * 5 / 4 < 0.5, target 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from relax_engine.elastic.autoscaler.config import AutoscalerConfig
from relax_engine.elastic.autoscaler.window import Observation, Window, span, variation

_DIGITS = 9  # of step sizes, so that (0.9 - 0.7) / 0.1 is 2


class Action(StrEnum):
    """What to do about the number of engines."""

    OUT = "scale_out"
    IN = "scale_in"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition: its present value, the bound, and whether it holds. `value` is None where nothing was measured."""

    direction: Action
    name: str
    value: float | None
    bound: float
    holds: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """What the rules say: `engines` are there, `target` should be."""

    action: Action
    engines: int
    target: int
    reason: str
    conditions: tuple[Condition, ...] = ()


def conditions(window: Window, config: AutoscalerConfig) -> tuple[Condition, ...]:
    """All conditions as they stand at the newest observation."""
    latest = window.latest
    if latest is None or not latest.metrics:
        return ()
    return (*_reasons_to_add(window, latest, config), *_reasons_to_remove(window, latest, config))


def decide(window: Window, config: AutoscalerConfig, now: float, last_action: float | None) -> Decision:
    """The decision at `now`; `last_action` is when engines were last added or removed (same clock)."""
    latest = window.latest
    if latest is None or not latest.metrics or now - latest.at > config.longest_gap:
        return Decision(Action.HOLD, latest.engines if latest else 0, latest.engines if latest else 0, "no metrics")
    found = conditions(window, config)
    engines = latest.engines

    def hold(reason: str) -> Decision:
        return Decision(Action.HOLD, engines, engines, reason, found)

    if latest.changing:
        return hold("engines are joining or leaving")
    since = math.inf if last_action is None else now - last_action
    to_add = [condition for condition in found if condition.direction is Action.OUT and condition.holds]
    if to_add or engines < config.min_engines:
        if engines >= config.max_engines:
            return hold(f"{_names(to_add)}, but there are max_engines {config.max_engines}")
        if since < config.scale_out.cooldown:
            return hold(f"cooldown: {since:.0f} of {config.scale_out.cooldown:g} s since the last action")
        target = min(engines + _step(latest, config), config.max_engines)
        return Decision(Action.OUT, engines, target, _names(to_add) or "fewer than min_engines", found)
    to_remove = [condition for condition in found if condition.direction is Action.IN]
    if not all(condition.holds for condition in to_remove):
        return hold("within bounds")
    floor = max(config.min_engines, latest.initial)
    if engines <= floor:
        return hold(f"idle, but {floor} engines stay")
    if since < config.scale_in.cooldown:
        return hold(f"cooldown: {since:.0f} of {config.scale_in.cooldown:g} s since the last action")
    return Decision(Action.IN, engines, max(engines - 1, floor), _names(to_remove), found)


def _reasons_to_add(window: Window, latest: Observation, config: AutoscalerConfig) -> list[Condition]:
    rules = config.scale_out
    busy = span(window.unbroken(lambda one: bool(one.metrics) and one.usage > rules.token_usage))
    waiting = latest.queued / len(latest.metrics)
    queue_time = window.percentile(lambda metrics: metrics.queue_time, rules.latency_window, 0.95)
    ttft = window.percentile(lambda metrics: metrics.ttft, rules.latency_window, 0.95)
    return [
        _over("token_usage", latest.usage, rules.token_usage, also=busy >= rules.token_usage_duration),
        _over("queued_per_engine", waiting, rules.queued_per_engine),
        _over("queue_time_p95", queue_time, rules.queue_time_p95),
        _over("ttft_p95", ttft, rules.ttft_p95),
    ]


def _reasons_to_remove(window: Window, latest: Observation, config: AutoscalerConfig) -> list[Condition]:
    rules = config.scale_in
    idle = window.unbroken(lambda one: bool(one.metrics) and one.usage < rules.token_usage)
    long_enough = span(idle) >= rules.token_usage_duration
    recent = [one.throughput for one in window.last(rules.token_usage_duration) if one.metrics]
    left = latest.engines - 1
    projected = latest.usage * latest.engines / left if left > 0 else None  # the others have its load
    return [
        _under("token_usage", latest.usage, rules.token_usage, also=long_enough),
        Condition(Action.IN, "queued", latest.queued, 0.0, latest.queued == 0),
        _under("throughput_variation", variation(recent), rules.throughput_variation),
        _under("projected_usage", projected, rules.projected_usage),
        Condition(Action.IN, "silent_engines", float(len(latest.silent)), 0.0, not latest.silent),
    ]


def _over(name: str, value: float | None, bound: float, *, also: bool = True) -> Condition:
    return Condition(Action.OUT, name, value, bound, value is not None and value > bound and also)


def _under(name: str, value: float | None, bound: float, *, also: bool = True) -> Condition:
    return Condition(Action.IN, name, value, bound, value is not None and value < bound and also)


def _step(latest: Observation, config: AutoscalerConfig) -> int:
    """Engines to add: by usage or by queue, whichever asks for more, at least 1 and at most `max_step`."""
    rules = config.scale_out
    by_usage = math.ceil(round((latest.usage - rules.usage_base) / rules.usage_per_engine, _DIGITS))
    by_queue = int(latest.queued - rules.queue_base * latest.engines) // rules.queued_per_added_engine
    missing = config.min_engines - latest.engines
    return min(max(by_usage, by_queue, missing, 1), rules.max_step)


def _names(found: Sequence[Condition]) -> str:
    return ", ".join(
        f"{condition.name} {condition.value:.3g} (bound {condition.bound:g})"
        for condition in found
        if condition.value is not None
    )
