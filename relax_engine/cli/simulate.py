"""`relax simulate`: what a run would take, before there is a cluster.

What lives here: flags, which are the fields of a plan, and printing. What does not: the models
(`relax_engine.simulation`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import yaml

from relax_engine.simulation import (
    MeasuredRun,
    Plan,
    PlanError,
    SimulationResult,
    Suggestion,
    read_run,
    simulate,
    suggest,
)

_SHOWN = 5


def main(argv: list[str]) -> int:
    """Simulate the plan that `argv` describes; returns 0.

    Raises:
        PlanError: it describes no run.
    """
    options = _parser().parse_args(argv)
    measured = read_run(options.from_run) if options.from_run else None
    plan = _plan(options, measured)
    if options.suggest:
        suggestions = suggest(plan, options.suggest, unit=options.unit, seed=options.seed)
        text = _table(suggestions)
        facts: Any = [dataclasses.asdict(suggestion) for suggestion in suggestions]
    else:
        result = simulate(plan, steps=options.steps, seed=options.seed)
        text = result.to_text() + (_comparison(result, measured) if measured else "")
        facts = result.to_dict()
        if measured:
            facts["measured"] = {"step_time": measured.step_time, "wait_time": measured.wait_time}
    print(json.dumps(facts, indent=2) if options.json else text)
    return 0


def _plan(options: argparse.Namespace, measured: MeasuredRun | None) -> Plan:
    given = {}
    for name in Plan.model_fields:
        if (text := getattr(options, name)) is not None:
            try:
                given[name] = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise PlanError(f"--{name.replace('_', '-')} {text}: not a number, list or mapping: {error}") from error
    if measured and options.plan:
        raise PlanError(f"both a plan ({options.plan}) and --from-run {options.from_run} were given; take one of them")
    if measured:
        return measured.plan.replace(**given)
    return Plan.of(options.plan).replace(**given) if options.plan else Plan.of(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="relax simulate",
        description="Simulate a run from its phase times: step time, utilization of each role, staleness. Times are "
        "seconds: a number, a list of measured ones, or {seconds: mean, sigma: spread, devices: N, fixed: share}.",
    )
    parser.add_argument("plan", nargs="?", help="YAML or JSON file of the fields below")
    parser.add_argument("--from-run", metavar="DIR", help="take the fields from the directory of a finished run")
    parser.add_argument("--suggest", type=int, metavar="N", help="divide N devices among the roles, the fastest first")
    parser.add_argument(
        "--unit", type=int, default=1, metavar="N", help="devices come in units of this many (default 1)"
    )
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="steps to simulate (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="of drawn durations (default 0)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    fields = parser.add_argument_group("plan")
    for name, field in Plan.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if field.annotation is bool else {}
        fields.add_argument(flag, dest=name, metavar="VALUE", help=field.description, **switch)
    return parser


def _comparison(result: SimulationResult, measured: MeasuredRun) -> str:
    error = result.step_time / measured.step_time - 1.0
    return (
        f"\nmeasured        {measured.step_time:10.3f} s a step ({error:+.1%} simulated), "
        f"trainer waited {measured.wait_time:.3f} s"
    )


def _table(suggestions: Sequence[Suggestion]) -> str:
    """The fastest divisions, and colocate wherever it stands."""
    shown = [item for rank, item in enumerate(suggestions) if rank < _SHOWN or item.mode == "colocate"]
    lines = [f"{'step time':>10}  {'staleness':>9}  {'mode':<11}  devices and their utilization"]
    for item in shown:
        busy = item.result.utilization
        parts = ", ".join(f"{role} {count} ({busy[role]:.0%})" for role, count in item.resource.items())
        lines.append(f"{item.result.step_time:8.3f} s  {item.result.mean_staleness:9.2f}  {item.mode:<11}  {parts}")
    return "\n".join(lines)
