"""What the engine reports about its load."""

from __future__ import annotations

import time
from typing import Any

from relax_engine.backends.engines.local.engine import LocalEngine


def load_report(engine: LocalEngine) -> dict[str, Any]:
    """Requests, cache use and lifetime counters; read from another thread, so only approximately consistent."""
    scheduler = engine.scheduler
    running = scheduler.running
    used = sum(scheduler.cache.cursor - request.start for request in running)
    uptime = max(time.monotonic() - engine.started, 1e-9)
    return {
        "dp_rank": 0,
        "num_running_reqs": len(running),
        "num_waiting_reqs": len(scheduler.waiting),
        "num_total_reqs": len(running) + len(scheduler.waiting),
        "num_used_tokens": used,
        "max_total_num_tokens": engine.max_total_tokens,
        "max_running_requests": engine.options.max_running_requests,
        "token_usage": round(used / engine.max_total_tokens, 6),
        "gen_throughput": round(scheduler.generated_tokens / uptime, 3),
    }


def prometheus_text(engine: LocalEngine) -> str:
    """Gauges and counters under SGLang's metric names."""
    load, scheduler = load_report(engine), engine.scheduler
    rows = [
        ("num_running_reqs", "gauge", "Requests that own a cache row", load["num_running_reqs"]),
        ("num_queue_reqs", "gauge", "Requests that wait for a row", load["num_waiting_reqs"]),
        ("num_used_tokens", "gauge", "Cached tokens", load["num_used_tokens"]),
        ("token_usage", "gauge", "Share of the cache in use", load["token_usage"]),
        ("generation_tokens_total", "counter", "Output tokens of finished requests", scheduler.generated_tokens),
        ("prompt_tokens_total", "counter", "Prefix tokens computed", scheduler.prompt_tokens),
        ("num_requests_total", "counter", "Finished requests", scheduler.finished_requests),
        ("num_retracted_reqs_total", "counter", "Retractions", scheduler.retracted_requests),
    ]
    lines = []
    for name, kind, text, value in rows:
        lines += [f"# HELP sglang:{name} {text}", f"# TYPE sglang:{name} {kind}", f"sglang:{name} {value}"]
    return "\n".join(lines) + "\n"
