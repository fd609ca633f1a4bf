"""`relax top RUN`: a run that goes on, in the terminal: figures, engines, roles, events.

What lives here: drawing. What does not: reading a run's files (`relax_engine.observe`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_FIGURES = (
    ("reward", "rollout/raw_reward"),
    ("response length", "rollout/response_len/mean"),
    ("truncated", "rollout/truncated_ratio"),
    ("loss", "train/loss"),
    ("gradient norm", "train/grad_norm"),
    ("KL of the step", "train/ppo_kl"),
    ("largest lag", "rollout/staleness/max"),
    ("step time, s", "perf/step_time"),
    ("waiting for samples", "perf/wait_time_ratio"),
    ("tokens/s a device", "perf/tokens_per_gpu_per_sec"),
)
_BARS = "▁▂▃▄▅▆▇█"
_CURVE, _EVENTS = 40, 6


def main(argv: list[str]) -> int:
    """Show the run until it ends or Ctrl-C.

    Raises:
        PlaceError: there is no run in the directory.
    """
    parser = argparse.ArgumentParser(prog="relax top", description="A run that goes on, in the terminal.")
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between looks (%(default)s)")
    parser.add_argument("--once", action="store_true", help="look once")
    options = parser.parse_args(argv)
    from rich.console import Console
    from rich.live import Live

    from relax_engine.observe.events import EVENTS, read_events
    from relax_engine.observe.journal import read_state
    from relax_engine.observe.ui.places import OpenRun, Places

    places = Places(options.run)
    run: OpenRun = places.run(places.root.name)

    def look() -> tuple[str, Group]:
        summary = run.summary()
        series = run.metrics.query([name for _, name in _FIGURES])
        events = read_events(run.directory / EVENTS)[-_EVENTS:]
        return summary["status"], drawn(summary, series, read_state(run.directory), events)

    console = Console()
    status, picture = look()
    if options.once:
        console.print(picture)
        return 0
    with Live(picture, console=console, auto_refresh=False) as live:
        while status in ("running", "starting"):
            time.sleep(options.interval)
            status, picture = look()
            live.update(picture, refresh=True)
    return 0


def drawn(
    summary: Mapping[str, Any],
    series: Mapping[str, Mapping[str, Sequence[float | None]]],
    state: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]],
) -> Group:
    """Everything below one another; what the run does not have is left out."""
    from rich.console import Group
    from rich.text import Text

    done = 0 if summary["step"] is None else summary["step"] + 1
    title = f"{summary['name']}  {summary['status']}  step {done} of {summary['num_steps'] or '?'}"
    parts: list[Any] = [Text(title, style="bold"), _figures(series)]
    engines = state.get("engines") or []
    if engines:
        rows = [
            (e["url"], str(e["version"]), str(e["outstanding"]), e.get("out_of_service") or "serving") for e in engines
        ]
        parts.append(_table(("engine", "version", "in flight", "state"), rows))
    roles = state.get("roles") or {}
    if roles:
        waits = {name: [f"{w['for']} {w['seconds']:.0f} s" for w in role["waiting"]] for name, role in roles.items()}
        lines = [(name, str(role["step"]), "; ".join(waits[name]) or "-") for name, role in roles.items()]
        parts.append(_table(("role", "step", "waits for"), lines))
    stream = state.get("stream") or {}
    if stream:
        names = ("produced", "trained", "filtered", "dropped_stale", "in_flight", "groups_occupied", "group_budget")
        parts.append(Text("stream  " + "  ".join(f"{name} {stream[name]:g}" for name in names if name in stream)))
    if events:
        parts.append(_table(("time", "event", ""), [_event(event) for event in events]))
    return Group(*parts)


def curve(values: Sequence[float | None]) -> str:
    """The last values as one line of block characters; empty for none."""
    known = [value for value in values[-_CURVE:] if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in known)


def _figures(series: Mapping[str, Mapping[str, Sequence[float | None]]]) -> Table:
    rows = []
    for label, name in _FIGURES:
        if name in series:
            last = series[name]["values"][-1]
            rows.append((label, "-" if last is None else f"{last:.4g}", curve(series[name]["values"])))
    return _table(("figure", "now", f"last {_CURVE} steps"), rows)


def _event(event: Mapping[str, Any]) -> tuple[str, str, str]:
    rest = {name: value for name, value in event.items() if name not in ("time", "kind", "role")}
    details = ", ".join(f"{name}: {value}" for name, value in rest.items())
    return time.strftime("%H:%M:%S", time.localtime(event["time"])), str(event["kind"]).replace("_", " "), details


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
