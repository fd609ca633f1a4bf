"""`relax elastic`: more or fewer engines for a run, through its HTTP API.

What lives here: flags, and printing. What does not: any decision (`relax_engine.elastic`, in the run).
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from relax_engine.errors import RelaxError

_POLL_S = 0.5
_ANSWER_S = 30.0
_ENDED = ("ACTIVE", "PARTIAL", "FAILED", "CANCELLED", "COMPLETED", "NOOP")
_FAILED = ("FAILED", "CANCELLED")


class ElasticCommandError(RelaxError):
    """The run cannot be reached, or refused."""


def main(argv: list[str]) -> int:
    """Make the request that `argv` describes; 0 unless it failed.

    Raises:
        ElasticCommandError: the run cannot be reached, refused, or did not finish in time.
    """
    options = _parser().parse_args(argv)
    base = f"{options.url.rstrip('/')}/rollout"
    match options.command:
        case "engines":
            answer = _call(base, "/engines")
        case "status":
            kinds = ("scale_out", "scale_in")
            answer = {kind: _call(base, f"/{kind}?model_name={options.model_name}")["requests"] for kind in kinds}
        case kind:
            answer = _scale(base, kind.replace("-", "_"), options)
    print(json.dumps(answer, indent=2) if options.json else _text(answer))
    return 1 if answer.get("status") in _FAILED else 0


def _scale(base: str, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    body: dict[str, Any] = {"model_name": options.model_name}
    if options.replicas is not None:
        body["num_replicas"] = options.replicas
    if options.engine_url:
        body["engine_urls"] = options.engine_url
    if options.timeout is not None:
        body["timeout_secs"] = options.timeout
    if kind == "scale_in":
        body |= {"force": options.force, "dry_run": options.dry_run}
    answer = _call(base, f"/{kind}", body)
    request_id = answer["request_id"]
    deadline = time.monotonic() + options.wait
    while request_id and answer["status"] not in _ENDED:
        if time.monotonic() > deadline:
            if options.wait:
                raise ElasticCommandError(f"{kind} {request_id} is {answer['status']} after {options.wait:g} s")
            break
        time.sleep(_POLL_S)
        answer = _call(base, f"/{kind}/{request_id}?model_name={options.model_name}")
    return answer


def _call(base: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            decoded: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise ElasticCommandError(f"{base}{path} answered {error.code}: {_detail(error.read())}") from error
    except (OSError, ValueError) as error:
        raise ElasticCommandError(f"no answer of a run at {base}{path}: {error}") from error
    return decoded


def _detail(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["detail"])
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace")[:500]


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
    helps = {
        "scale-out": "add engines",
        "scale-in": "remove engines",
        "engines": "list engines",
        "status": "list scale requests",
    }
    for name, text in helps.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]} of a run.")
        command.add_argument(
            "--url", required=True, help="the run's address, as its log has it (http://127.0.0.1:8000)"
        )
        command.add_argument("--model-name", default="default", metavar="NAME", help="whose engines (default: default)")
        command.add_argument("--json", action="store_true", help="print JSON")
        if name in ("engines", "status"):
            continue
        command.add_argument("--replicas", type=int, metavar="N", help="engines that are to be there in all")
        command.add_argument(
            "--engine-url", action="append", metavar="URL", help="an engine elsewhere; may be repeated"
        )
        command.add_argument("--timeout", type=float, metavar="S", help="deadline of the request")
        command.add_argument("--wait", type=float, default=600.0, metavar="S", help="wait for its end (default 600)")
        if name == "scale-in":
            command.add_argument("--force", action="store_true", help="do not wait for requests in flight")
            command.add_argument("--dry-run", action="store_true", help="only say which engines would leave")
    return parser
