"""The metrics of engines, SGLang's and the embedded one's, and percentiles of what is in them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from series import observed

from relax_engine.backends.engines.local.durations import BOUNDS, DurationHistogram
from relax_engine.elastic.autoscaler.histogram import Histogram
from relax_engine.elastic.autoscaler.prometheus import MetricsTextError, parse_metrics

SGLANG = """\
# HELP sglang:token_usage The token usage.
# TYPE sglang:token_usage gauge
sglang:token_usage{engine_type="unified",model_name="m",tp_rank="0"} 0.25
sglang:num_running_reqs{model_name="m"} 3.0
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:gen_throughput{model_name="m"} 812.5
sglang:generation_tokens_total{model_name="m"} 7.557572e+06
# TYPE sglang:queue_time_seconds histogram
sglang:queue_time_seconds_bucket{le="0.1",model_name="m"} 90.0
sglang:queue_time_seconds_bucket{le="1.0",model_name="m"} 98.0
sglang:queue_time_seconds_bucket{model_name="m",le="+Inf"} 100.0
sglang:queue_time_seconds_sum{model_name="m"} 12.5
sglang:queue_time_seconds_count{model_name="m"} 100.0
process_resident_memory_bytes 1.0e+09
"""


def test_sglang() -> None:
    metrics = parse_metrics(SGLANG)
    assert (metrics.token_usage, metrics.running, metrics.queued, metrics.throughput) == (0.25, 3.0, 2.0, 812.5)
    assert metrics.queue_time == Histogram({0.1: 90.0, 1.0: 98.0, math.inf: 100.0})
    assert metrics.ttft == Histogram({})


def test_data_parallel_ranks_are_taken_together() -> None:
    text = "".join(
        f'sglang:token_usage{{dp_rank="{rank}"}} {usage}\nsglang:num_queue_reqs{{dp_rank="{rank}"}} {queued}\n'
        f'sglang:num_running_reqs{{dp_rank="{rank}"}} 1\n'
        f'sglang:queue_time_seconds_bucket{{dp_rank="{rank}",le="+Inf"}} 5\n'
        for rank, usage, queued in ((0, 0.2, 1), (1, 0.6, 4))
    )
    metrics = parse_metrics(text)
    assert (metrics.token_usage, metrics.queued, metrics.queue_time.total) == (0.4, 5.0, 10.0)


def test_an_idle_engine_generates_nothing_whatever_the_gauge_kept() -> None:
    assert parse_metrics(SGLANG.replace('reqs{model_name="m"} 3.0', "reqs 0")).throughput == 0.0


def test_what_is_missing_is_named() -> None:
    with pytest.raises(MetricsTextError, match="lack sglang:token_usage, sglang:num_queue_reqs"):
        parse_metrics("sglang:num_running_reqs 1\n")


def test_percentiles_by_hand() -> None:
    """As `histogram_quantile`: rank 95 of 100 lies 5 of 8 into the bucket from 0.1 to 1."""
    histogram = parse_metrics(SGLANG).queue_time
    assert histogram.percentile(0.95) == pytest.approx(0.1 + 0.9 * 5 / 8)
    assert histogram.percentile(0.5) == pytest.approx(0.1 * 50 / 90)
    assert histogram.percentile(0.99) == 1.0  # beyond the last finite bound
    assert Histogram({}).percentile(0.95) is None
    assert Histogram({1.0: 0.0, math.inf: 0.0}).percentile(0.95) is None


DURATIONS = st.lists(st.floats(0.001, 20), min_size=1)


@given(DURATIONS, DURATIONS, st.floats(0.01, 0.99))
def test_differences_and_sums_are_those_of_the_durations(before: list[float], after: list[float], share: float) -> None:
    both = observed(before + after)
    assert both.since(observed(before)) == observed(after)
    assert observed(before) + observed(after) == both
    estimate = both.percentile(share)
    assert estimate is not None
    exact = sorted(before + after)[max(0, math.ceil(share * len(before + after)) - 1)]
    bounds = [0.0, *sorted(bound for bound in both.cumulative if bound != math.inf)]
    # The estimate lies in the bucket of the exact value.
    low = max((bound for bound in bounds if bound < exact), default=0.0)
    high = min((bound for bound in bounds if bound >= exact), default=bounds[-1])
    assert low - 1e-9 <= estimate <= high + 1e-9


def test_the_embedded_engines_histogram_is_read_back() -> None:
    histogram = DurationHistogram()
    for duration in (0.005, 0.01, 0.3, 7.0, 5000.0):
        histogram.observe(duration)
    lines = ["sglang:token_usage 0", "sglang:num_queue_reqs 0", "sglang:num_running_reqs 0"]
    text = "\n".join(lines + histogram.rows("sglang:time_to_first_token_seconds", "text"))
    found = parse_metrics(text).ttft.cumulative
    assert set(found) == {*BOUNDS, math.inf}
    assert (found[0.01], found[0.2], found[0.5], found[5.0], found[10.0], found[1000.0], found[math.inf]) == (
        2, 2, 3, 3, 4, 4, 5,
    )  # fmt: skip
    assert text.splitlines()[-2:] == [
        "sglang:time_to_first_token_seconds_sum 5007.315000", "sglang:time_to_first_token_seconds_count 5"
    ]  # fmt: skip
