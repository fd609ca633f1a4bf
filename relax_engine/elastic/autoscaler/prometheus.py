"""Reading the Prometheus text of an engine: SGLang's metric names, from SGLang itself and from the embedded engine."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from relax_engine.elastic.autoscaler.histogram import Histogram
from relax_engine.errors import RelaxError

_LINE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_BOUND = re.compile(r'(?:^|,)\s*le="([^"]*)"')


class MetricsTextError(RelaxError):
    """An engine's metrics lack something."""


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """What one engine reports about its load."""

    token_usage: float
    """Share of its cache in use, 0 to 1."""
    queued: float
    """Requests that wait."""
    running: float
    """Requests that are computed."""
    throughput: float
    """Generated tokens per second, lately."""
    queue_time: Histogram
    """Seconds that requests waited, since the engine's start."""
    ttft: Histogram
    """Seconds to the first token, since the engine's start."""


def parse_metrics(text: str) -> EngineMetrics:
    """The load in an answer of `/metrics`. Of several data-parallel ranks, usage is the mean and the rest the sum.

    Raises:
        MetricsTextError: a gauge that rules need is missing; SGLang has them with `--enable-metrics`.
    """
    gauges: dict[str, list[float]] = defaultdict(list)
    buckets: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for line in text.splitlines():
        match = _LINE.match(line)
        if line.startswith("#") or match is None or not match["name"].startswith("sglang:"):
            continue
        name, value = match["name"].removeprefix("sglang:"), float(match["value"])
        if name.endswith("_bucket") and (bound := _BOUND.search(match["labels"] or "")):
            buckets[name.removesuffix("_bucket")][float(bound[1])] += value
        else:
            gauges[name].append(value)
    missing = [name for name in ("token_usage", "num_queue_reqs", "num_running_reqs") if not gauges[name]]
    if missing:
        raise MetricsTextError(f"the metrics lack {', '.join(f'sglang:{name}' for name in missing)}")
    running = sum(gauges["num_running_reqs"])
    return EngineMetrics(
        token_usage=sum(gauges["token_usage"]) / len(gauges["token_usage"]),
        queued=sum(gauges["num_queue_reqs"]),
        running=running,
        # SGLang keeps the gauge's last value while nothing runs.
        throughput=sum(gauges["gen_throughput"]) if running else 0.0,
        queue_time=Histogram(dict(buckets["queue_time_seconds"])),
        ttft=Histogram(dict(buckets["time_to_first_token_seconds"])),
    )
