"""`relax elastic`: more or fewer engines for a run, through its HTTP API.

What lives here: flags, and printing. What does not: any decision (`relax_engine.elastic`, in the run).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_engine.cli.run_api import add_run_api, run_api
from relax_engine.errors import RelaxError
from relax_engine.observe.events import EVENTS, read_events

if TYPE_CHECKING:
    from relax_engine.elastic.autoscaler.rollout_api import RolloutApi

_POLL_S = 0.5
_ANSWER_S = 30.0
_ENDED = ("ACTIVE", "PARTIAL", "FAILED", "CANCELLED", "COMPLETED", "NOOP")
_FAILED = ("FAILED", "CANCELLED")
_ROLES = ("rollout", "genrm")
_COMMANDS = {
    "scale-out": "add engines",
    "scale-in": "remove engines",
    "engines": "list engines",
    "status": "list scale requests",
    "events": "list what happened to engines and roles",
}


class ElasticCommandError(RelaxError):
    """A scale request did not end in time."""


def main(argv: list[str]) -> int:
    """Make the request that `argv` describes; 0 unless it failed.

    Raises:
        RelaxError: no token, the run cannot be reached or refused, or the request did not end in time.
    """
    options = _parser().parse_args(argv)
    if options.command == "events":
        print(_events(options))
        return 0
    answer = asyncio.run(_ask(options))
    print(json.dumps(answer, indent=2) if options.json else _text(answer))
    return 1 if answer.get("status") in _FAILED else 0


def _events(options: argparse.Namespace) -> str:
    """The events of a run, which may have ended, one a line."""
    events = read_events(options.run_dir / EVENTS)
    if options.json:
        return json.dumps(events, indent=2)
    lines = []
    for event in events:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.pop("time")))
        rest = "  ".join(f"{name}={value}" for name, value in event.items() if value not in (None, "", [], {}))
        lines.append(f"{when}  {rest}")
    return "\n".join(lines)


async def _ask(options: argparse.Namespace) -> Mapping[str, Any]:
    api = run_api(options, options.role, options.url, timeout_s=_ANSWER_S)
    if options.command == "engines":
        return await api.get("/engines")
    if options.command == "status":
        query = f"?model_name={options.model_name}"
        return {kind: (await api.get(f"/{kind}{query}"))["requests"] for kind in ("scale_out", "scale_in")}
    return await _scale(api, options)


async def _scale(api: RolloutApi, options: argparse.Namespace) -> Mapping[str, Any]:
    """Make a scale request, and wait for its end unless that is not wanted."""
    kind = options.command.replace("-", "_")
    body: dict[str, Any] = {"model_name": options.model_name}
    if options.replicas is not None:
        body["num_replicas"] = options.replicas
    if options.engine_url:
        body["engine_urls"] = options.engine_url
    if options.timeout is not None:
        body["timeout_secs"] = options.timeout
    if kind == "scale_in":
        body |= {"force": options.force, "dry_run": options.dry_run}
    answer = await api.post(f"/{kind}", body)
    request_id, deadline = answer["request_id"], time.monotonic() + options.wait
    while options.wait and request_id and answer["status"] not in _ENDED:
        if time.monotonic() > deadline:
            raise ElasticCommandError(f"{kind} {request_id} is {answer['status']} after {options.wait:g} s (--wait)")
        await asyncio.sleep(_POLL_S)
        answer = await api.get(f"/{kind}/{request_id}?model_name={options.model_name}")
    return answer


def _text(answer: Mapping[str, Any]) -> str:
    if "models" in answer:
        engines = [e for model in answer["models"].values() for g in model["engine_groups"] for e in g["engines"]]
        lines = [f"{e['url']:<32} {e['status']:<9} {e['origin']:<11} {e['outstanding']:>6} in flight" for e in engines]
        return "\n".join(lines)
    if "scale_out" in answer:
        rows = sorted((r["created_at"], kind, r) for kind, requests in answer.items() for r in requests)
        return "\n".join(f"{kind:<9} {r['request_id']} {r['status']} {r['error_message'] or ''}" for _, kind, r in rows)
    parts = [answer["status"], answer["request_id"], answer.get("message") or answer.get("error_message") or ""]
    parts += [f"{name}: {answer[name]}" for name in ("engine_ids", "selected_engines") if answer.get(name)]
    return "  ".join(part for part in parts if part)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="relax elastic", description="Give a run more or fewer engines, and look at those that it has."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]} of a run.")
        if name == "events":
            command.add_argument("--run-dir", type=Path, required=True, metavar="DIR", help="directory of the run")
            command.add_argument("--json", action="store_true", help="print JSON")
            continue
        add_run_api(command)
        command.add_argument("--role", choices=_ROLES, default="rollout", help="role with the engines (%(default)s)")
        command.add_argument("--model-name", default="default", metavar="NAME", help="whose engines (%(default)s)")
        command.add_argument("--json", action="store_true", help="print JSON")
        if name in ("engines", "status"):
            continue
        command.add_argument("--replicas", type=int, metavar="N", help="engines that are to be there in all")
        command.add_argument(
            "--engine-url", action="append", metavar="URL", help="an engine elsewhere; may be repeated"
        )
        command.add_argument("--timeout", type=float, metavar="S", help="deadline of the request, in seconds")
        command.add_argument(
            "--wait", type=float, default=600.0, metavar="S", help="wait for its end (%(default)s; 0: not)"
        )
        if name == "scale-in":
            command.add_argument("--force", action="store_true", help="do not wait for requests in flight")
            command.add_argument("--dry-run", action="store_true", help="only say which engines would leave")
    return parser
