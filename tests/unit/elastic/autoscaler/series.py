"""Hand-made time series of metrics."""

from __future__ import annotations

from collections.abc import Sequence

from relax_engine.elastic.autoscaler.config import AutoscalerConfig
from relax_engine.elastic.autoscaler.histogram import Histogram
from relax_engine.elastic.autoscaler.prometheus import EngineMetrics
from relax_engine.elastic.autoscaler.window import Observation, Window

INF = float("inf")


def metrics(
    usage: float = 0.5,
    queued: float = 0.0,
    throughput: float = 100.0,
    waits: Sequence[float] = (),
    ttft: Sequence[float] = (),
) -> EngineMetrics:
    """One engine; `waits` and `ttft` are the durations that it has seen since its start."""
    return EngineMetrics(usage, queued, 1.0, throughput, observed(waits), observed(ttft))


def observed(durations: Sequence[float]) -> Histogram:
    bounds = (1.0, 2.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, INF)
    return Histogram({bound: float(sum(value <= bound for value in durations)) for bound in bounds})


def window(
    series: Sequence[Sequence[EngineMetrics] | None], config: AutoscalerConfig | None = None, **changes: object
) -> Window:
    """Observations every ten seconds, from 0 on; None is a look that failed."""
    config = config or AutoscalerConfig()
    result = Window(config.memory, config.longest_gap)
    for number, engines in enumerate(series):
        if engines is not None:
            found = {f"http://engine-{index}": one for index, one in enumerate(engines)}
            fields = {"engines": len(found), "initial": 1, **changes}
            result.add(Observation(10.0 * number, found, **fields))  # type: ignore[arg-type]
    return result


def end(of: Window) -> float:
    assert of.latest is not None
    return of.latest.at
