"""The plan of a run that was made: its phases as timings, and what it reached.

Reads `config.yaml`, `timeline.json` and `metrics.jsonl` of a run directory.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax_engine.observe.metrics import read_metrics
from relax_engine.simulation.plan import Plan, PlanError

_LAG = "rollout/staleness/count/"
_TIMINGS = {
    "log_probs": "actor_fwd",
    "ref_log_probs": "reference",
    "advantages": "advantages",
    "train": "train",
    "optimizer": "train",
    "weight_sync": "weight_sync",
}
"""Phases that are timings of their own; what else the actor does between two steps is `other`."""

_APART = ("actor_fwd", "reference", "advantages")
"""Roles besides the actor whose phases are those timings. A critic's are not simulated."""
_SCALING = ("generation", "actor_fwd", "reference", "train")

Span = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run as the simulator sees it.

    Attributes:
        plan: Its inputs.
        step_time: Mean seconds a step, without the first.
        wait_time: Mean seconds in which the actor waited for samples.
        staleness: Share of trained samples by lag.
    """

    plan: Plan
    step_time: float
    wait_time: float
    staleness: dict[int, float]


def read_run(run_dir: str | Path) -> MeasuredRun:
    """Read a run directory. The first step of the call that wrote `timeline.json` is left out: it warms up.

    Raises:
        PlanError: files are missing, or fewer than three steps were made.
    """
    from relax_engine.config import RunConfig
    from relax_engine.config.roles import devices_of

    root = Path(run_dir)
    missing = [name for name in ("config.yaml", "timeline.json", "metrics.jsonl") if not (root / name).exists()]
    if missing:
        raise PlanError(f"{root} is not the directory of a finished run: it has no {', '.join(missing)}")
    config = RunConfig.from_yaml(root / "config.yaml")
    facts = {
        "mode": config.mode,
        "rollout_batch_size": config.flat.rollout_batch_size,
        "max_staleness": config.rollouts_ahead,
        "num_iters_per_train_update": config.flat.num_iters_per_train_update,
    }
    devices = {role: devices_of(config, role) for role in ("rollout", "actor", "actor_fwd", "reference")}
    timeline = json.loads((root / "timeline.json").read_text())
    return measure(facts, timeline, read_metrics(root / "metrics.jsonl"), devices)


def measure(
    facts: Mapping[str, Any],
    timeline: Sequence[Span],
    metrics: Sequence[Span],
    devices: Mapping[str, int] | None = None,
) -> MeasuredRun:
    """The measured run from its phases and metrics.

    `facts` are plan fields that no phase tells; `devices` are those of the roles, with which the times of generation,
    log-probs and training are assumed to scale.

    Raises:
        PlanError: fewer than three steps.
    """
    first = min((span["step"] for span in timeline if span["role"] == "actor"), default=0)
    records = {record["step"]: record for record in metrics if record["step"] > first}
    if len(records) < 2:
        raise PlanError(f"the run made {len(records) + bool(metrics)} steps; timings need at least 3")
    spans = sorted(
        (span for span in timeline if span["step"] in records), key=lambda span: (span["step"], span["start"])
    )
    outer = _without_nested([span for span in spans if span["role"] == "actor"])
    by_phase: defaultdict[str, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    roles = {"generation": "rollout"}
    for span in [*outer, *(span for span in spans if span["role"] in _APART)]:
        if span["name"] in _TIMINGS:
            by_phase[_TIMINGS[span["name"]]][span["step"]] += _length(span)
            roles[_TIMINGS[span["name"]]] = span["role"]
    requests = [span for span in spans if span["name"] == "generate"]
    rewards = [span for span in spans if span["name"] == "reward"]
    pauses = [span for span in timeline if span["name"] == "weight_sync"]
    waits = _waits(facts["mode"], records, requests + rewards)
    accounted = {step: waits[step] + sum(_length(span) for span in _named(outer, step)) for step in records}

    def timing(name: str, samples: list[float]) -> dict[str, Any]:
        known = (devices or {}).get(roles[name]) if name in _SCALING else None
        return {"samples": samples, "devices": known or None}

    plan = Plan.of(
        {
            **facts,
            "request_groups": _groups_of_a_request(facts["rollout_batch_size"], len(requests) / len(records)),
            "generation": timing("generation", [_length(span) - _overlap(span, pauses) for span in requests]),
            "reward": [_length(span) for span in rewards],
            # A step without a phase took no time for it: weights may be pushed every few steps only.
            **{name: timing(name, [took[step] for step in sorted(records)]) for name, took in by_phase.items()},
            "handover": _handover(spans, records),
            "other": [max(0.0, records[step]["perf/step_time"] - accounted[step]) for step in records],
        }
    )
    return MeasuredRun(
        plan=plan,
        step_time=_mean(record["perf/step_time"] for record in records.values()),
        wait_time=_mean(waits.values()),
        staleness=_lags(records.values()),
    )


def _groups_of_a_request(batch: int, requests: float) -> int:
    """How many of a step's `batch` groups one of its `requests` has, as a divisor of `batch`."""
    return max(size for size in range(1, batch + 1) if batch % size == 0 and size <= max(1.0, batch / requests))


def _waits(mode: str, records: Mapping[int, Span], spans: Iterable[Span]) -> dict[int, float]:
    """How long the actor had nothing to do in each step: in colocate, while its samples were made."""
    if mode != "colocate":
        return {step: record["perf/wait_time"] for step, record in records.items()}
    made = defaultdict(list)
    for span in spans:
        made[span["step"]].append(span)
    return {
        step: max(span["end"] for span in made[step]) - min(span["start"] for span in made[step]) for step in records
    }


def _handover(spans: Iterable[Span], steps: Iterable[int]) -> float:
    """Median time from the end of a step's forward passes to the start of its advantages, whose role is mostly idle."""
    ends: dict[int, float] = {}
    starts: dict[int, float] = {}
    for span in spans:
        if span["role"] in ("actor_fwd", "reference"):
            ends[span["step"]] = max(ends.get(span["step"], 0.0), span["end"])
        elif span["role"] == "advantages":
            starts[span["step"]] = max(starts.get(span["step"], 0.0), span["start"])
    times = [max(0.0, starts[step] - ends[step]) for step in steps if step in ends and step in starts]
    return statistics.median(times) if times else 0.0


def _named(spans: Iterable[Span], step: int) -> list[Span]:
    return [span for span in spans if span["step"] == step and span["name"] in _TIMINGS]


def _without_nested(spans: Sequence[Span]) -> list[Span]:
    """Spans that do not lie within another one: a phase inside a phase is not to be counted twice."""
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: (span["start"], -span["end"])):
        if not kept or span["end"] > kept[-1]["end"]:
            kept.append(span)
    return kept


def _length(span: Span) -> float:
    return float(span["end"] - span["start"])


def _overlap(span: Span, others: Iterable[Span]) -> float:
    return sum(max(0.0, min(span["end"], other["end"]) - max(span["start"], other["start"])) for other in others)


def _lags(records: Iterable[Span]) -> dict[int, float]:
    counts: defaultdict[int, float] = defaultdict(float)
    for record in records:
        for name, count in record.items():
            if name.startswith(_LAG):
                counts[int(name.removeprefix(_LAG))] += count
    return {lag: count / sum(counts.values()) for lag, count in sorted(counts.items())}


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) / len(values)
