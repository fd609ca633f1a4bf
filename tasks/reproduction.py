"""What the paper on asynchronous training compares, at the scale at hand, and its numbers beside ours.

The published numbers are those of arXiv 2604.11554: Qwen3-4B on 16 H800, and, for routing replay, Qwen3-30B-A3B.
"""

from __future__ import annotations

import json
from typing import Any

from flytekit import task

from relax_engine.errors import ConfigError
from relax_engine.observe.plots import plot_named
from tasks import decks, html
from tasks.executions import executed
from tasks.settings import CACHE, EVERY_TASK, SHORT, SMALL
from tasks.store import fetch, publish, work_directory
from tasks.types import ArtifactRef, TrainingOverrides

_ASYNC = {"actor": [1, 1], "rollout": [1, 1], "actor_fwd": [1, 1], "advantages": [1, 0]}
_LAGS = (0, 1, 2, 4)


@task(cache=CACHE, requests=SMALL, timeout=SHORT, **EVERY_TASK)
def paper_variants(num_rollout: int, runs: str) -> list[TrainingOverrides]:
    """The trainings to compare: the three modes, and fully async at several bounds of staleness.

    With `runs` not `all` but `deterministic`, those that repeat themselves bit by bit: colocate, and hybrid on-policy.

    Raises:
        ConfigError: `runs` is something else.
    """
    with executed("paper_variants"):
        if runs not in ("all", "deterministic"):
            raise ConfigError(f"runs={runs!r}: give 'all' or 'deterministic'")
        shared: dict[str, Any] = {"num_rollout": num_rollout, "lr_warmup_iters": min(10, num_rollout // 4)}
        if runs == "deterministic":
            shared["settings"] = {"deterministic": "true"}
            modes: list[dict[str, Any]] = [{"hybrid": False}, {"hybrid": True, "max_staleness": 0}]
        else:
            modes = [{"fully_async": False}, {"hybrid": True, "max_staleness": 2}]
            modes += [{"fully_async": True, "max_staleness": lag, "resource": _ASYNC} for lag in _LAGS]
        return [TrainingOverrides(**shared, **mode) for mode in modes]


@task(cache=CACHE, requests=SMALL, timeout=SHORT, **EVERY_TASK)
def paper_report(comparison: ArtifactRef, pipeline: str) -> ArtifactRef:
    """Publish `<pipeline>-report`: each claim of the paper with its number and what the comparison shows.

    `claims.json` and `report.md`; where both sides were trained deterministically, speeds are left out, since a clock
    never repeats itself.
    """
    with executed("paper_report"), work_directory("paper-report", comparison=comparison) as work:
        source = fetch(comparison)
        results, times = (json.loads((source / name).read_text()) for name in ("results.json", "times.json"))
        claims = _learning(results)
        if any(row["mode"] == "fully_async" for row in results):
            claims += _speeds(results, times)
        claims.append(
            _claim("routing replay's share of a step", 0.019, None, "not in this comparison: a mixture of experts' own")
        )
        header = ("claim", "published", "here", "note")
        table = [tuple(claim.values()) for claim in claims]
        runs = html.table(list(results[0]), [list(row.values()) for row in results])
        pictures = {path.stem: path.read_text(encoding="utf-8") for path in sorted(source.glob("*.svg"))}
        figures = [html.figure(plot_named(name).title, picture) for name, picture in pictures.items()]
        parts = [html.table(header, table), runs, *figures, html.lineage(None, [comparison])]
        document = decks.show(f"Report of {pipeline}", *parts)
        (work / "report.html").write_text(document, encoding="utf-8")
        (work / "claims.json").write_text(json.dumps(claims, indent=1), encoding="utf-8")
        lines = [" | ".join(map(_cell, row)) for row in [header, ("---",) * len(header), *table]]
        runs_text = (source / "report.md").read_text()
        for name, picture in pictures.items():
            (work / f"{name}.svg").write_text(picture, encoding="utf-8")
        text = "\n".join(f"| {line} |" for line in lines)
        (work / "report.md").write_text(f"# Report of {pipeline}\n\n{text}\n\n{runs_text}", encoding="utf-8")
        return publish(work, kind="evaluation", name=f"{pipeline}-report", parents=[comparison])


def _learning(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rewards = [row["sampled after"] for row in results]
    spread = max(rewards) - min(rewards)
    gain = min(rewards) - results[0]["sampled before"]
    return [
        _claim("spread of the final reward over the variants", None, spread, "published: all modes reach the same"),
        _claim("smallest gain in reward", None, gain, "published only as curves"),
    ]


def _speeds(results: list[dict[str, Any]], times: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Samples per second over colocate's: of the fully-async variant on-policy, and of the fastest other one."""
    rates = [(row["mode"], row["mean lag"], time["samples/s"]) for row, time in zip(results, times, strict=True)]
    base = next(rate for mode, _, rate in rates if mode == "colocate")
    behind = [rate for mode, _, rate in rates if mode == "fully_async"]
    note = "shared cores: here the roles take time from one another"
    return [
        _claim("speed of fully async on-policy over colocate", 1.12, behind[0] / base, note),
        _claim("speed of fully async off-policy over colocate", 1.76, max(behind[1:]) / base, note),
    ]


def _claim(claim: str, published: float | None, here: float | None, note: str) -> dict[str, Any]:
    return {"claim": claim, "published": published, "here": here, "note": note}


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
