"""What the engine reports about its load."""

from __future__ import annotations

from typing import Any

from relax_engine.backends.engines.local.engine import LocalEngine


def load_report(engine: LocalEngine) -> dict[str, Any]:
    """Requests, cache use and lifetime counters; read from another thread, so only approximately consistent."""
    scheduler = engine.scheduler
    running = scheduler.running
    used = sum(scheduler.cache.cursor - request.start for request in running)
    return {
        "dp_rank": 0,
        "num_running_reqs": len(running),
        "num_waiting_reqs": len(scheduler.waiting),
        "num_total_reqs": len(running) + len(scheduler.waiting),
        "num_used_tokens": used,
        "max_total_num_tokens": engine.max_total_tokens,
        "max_running_requests": engine.options.max_running_requests,
        "token_usage": round(used / engine.max_total_tokens, 6),
        "gen_throughput": round(engine.rate.update(scheduler.produced_tokens), 3),
    }


def prometheus_text(engine: LocalEngine) -> str:
    """Gauges, counters and histograms under SGLang's metric names."""
    load, scheduler = load_report(engine), engine.scheduler
    rows = [
        ("num_running_reqs", "gauge", "Requests that own a cache row", load["num_running_reqs"]),
        ("num_queue_reqs", "gauge", "Requests that wait for a row", load["num_waiting_reqs"]),
        ("num_used_tokens", "gauge", "Cached tokens", load["num_used_tokens"]),
        ("token_usage", "gauge", "Share of the cache in use", load["token_usage"]),
        ("gen_throughput", "gauge", "Output tokens per second since the last look", load["gen_throughput"]),
        ("generation_tokens_total", "counter", "Output tokens of finished requests", scheduler.generated_tokens),
        ("prompt_tokens_total", "counter", "Prefix tokens computed", scheduler.prompt_tokens),
        ("num_requests_total", "counter", "Finished requests", scheduler.finished_requests),
        ("num_retracted_reqs_total", "counter", "Retractions", scheduler.retracted_requests),
    ]
    lines = []
    for name, kind, text, value in rows:
        lines += [f"# HELP sglang:{name} {text}", f"# TYPE sglang:{name} {kind}", f"sglang:{name} {value}"]
    lines += scheduler.queue_time.rows("sglang:queue_time_seconds", "From arrival to a cache row")
    lines += scheduler.ttft.rows("sglang:time_to_first_token_seconds", "From arrival to the first output token")
    return "\n".join(lines) + "\n"
