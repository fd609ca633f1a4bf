"""`relax autoscaler`: what the autoscaler of a run sees and does, and an autoscaler outside of the run.

What lives here: flags and printing. What does not: the rules and the loop (`relax_engine.elastic.autoscaler`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from relax_engine.cli.run_api import add_run_api, run_api
from relax_engine.utils.logging import configure_logging

_TIMEOUT_S = 10.0


def main(argv: list[str]) -> int:
    """Show the status, or scale a run from outside until interrupted; returns 0.

    Raises:
        ConfigError: the configuration file is wrong.
        RelaxError: no token, or the run's API does not answer.
    """
    options = _parser().parse_args(argv)
    if options.command == "run":
        return _run(options)
    return asyncio.run(_status(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="relax autoscaler", description="Watch or run the autoscaler.")
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser("status", help="show what the autoscaler of a run sees, decides and did")
    add_run_api(status)
    status.add_argument("--history", type=int, default=10, metavar="N", help="entries shown (default %(default)s)")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.add_argument("--watch", type=float, metavar="SECONDS", help="show it again every so many seconds")
    run = commands.add_parser("run", help="scale a run that has no autoscaler of its own")
    add_run_api(run, "--rollout-url")
    run.add_argument("--config", metavar="FILE", help="YAML of thresholds and bounds, as for --autoscaler-config")
    run.add_argument("--recommend-only", action="store_true", help="log what would be done, and do nothing")
    return parser


def _run(options: argparse.Namespace) -> int:
    from relax_engine.elastic.autoscaler.config import AutoscalerConfig, read_autoscaler_config
    from relax_engine.elastic.autoscaler.loop import Autoscaler

    configure_logging()
    config = read_autoscaler_config(options.config) if options.config else AutoscalerConfig()
    if options.recommend_only:
        config = config.model_copy(update={"recommend_only": True})
    api = run_api(options, "rollout", options.rollout_url, timeout_s=config.request_timeout)
    asyncio.run(Autoscaler(config, api).run())
    return 0


async def _status(options: argparse.Namespace) -> int:
    api = run_api(options, "autoscaler", options.url, timeout_s=_TIMEOUT_S)
    while True:
        status = await api.get("/status")
        conditions = await api.get("/conditions")
        history = await api.get(f"/scale_history?limit={options.history}")
        report = {"status": status, **conditions, **history}
        print(json.dumps(report, indent=2) if options.json else render(report))
        if options.watch is None:
            return 0
        await asyncio.sleep(options.watch)


def render(report: Mapping[str, Any]) -> str:
    """The report as text: state, conditions, and what was done last."""
    status = report["status"]
    state = "recommends only" if status["recommend_only"] else "acts" if status["enabled"] else "disabled"
    lines = [
        f"autoscaler  {state}, model {status['model_name']}",
        f"engines     {_shown(status['engines'])} (bounds {status['min_engines']}..{status['max_engines']})"
        + (f", silent: {', '.join(status['silent_engines'])}" if status["silent_engines"] else ""),
        f"load        token usage {_shown(status['token_usage'])}, {_shown(status['queued'])} queued, "
        f"{_shown(status['throughput'])} tokens/s",
    ]
    if (decision := status["last_decision"]) is not None:
        lines.append(f"decision    {decision['action']} -> {decision['target']}: {decision['reason']}")
    if status["error"]:
        lines.append(f"error       {status['error']}")
    for title, direction in (("scale out on any", "scale_out"), ("scale in on all", "scale_in")):
        lines.append(f"\n{title}")
        lines += [
            f"  {'x' if one['holds'] else ' '} {one['name']:<21} {_shown(one['value']):>10}  bound {one['bound']:g}"
            for one in report["conditions"]
            if one["direction"] == direction
        ]
    lines.append("\nhistory")
    lines += [
        f"  {datetime.fromtimestamp(entry['at']):%Y-%m-%d %H:%M:%S}  {entry['outcome']:<11} {entry['action']:<9} "
        f"{entry['engines']} -> {entry['target']}  {entry['reason']} {entry['message']}".rstrip()
        for entry in report["history"]
    ] or ["  nothing yet"]
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"
