"""What the paper on asynchronous training (arXiv 2604.11554) compares, at the scale at hand.

What lives here: which runs, and the report. What does not: the published numbers and what is set beside them
(`claims.py`).
"""

from __future__ import annotations

import json
from typing import Any

from flytekit import task

from relax_engine.errors import ConfigError
from relax_engine.observe.plots import plot_named
from tasks import claims, decks, html, markdown
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
        if _repeats(runs):
            modes: list[dict[str, Any]] = [{"hybrid": False}, {"hybrid": True, "max_staleness": 0}]
        else:
            modes = [{"fully_async": False}, {"hybrid": True, "max_staleness": 2}]
            modes += [{"fully_async": True, "max_staleness": lag, "resource": _ASYNC} for lag in _LAGS]
        return [_training(num_rollout, runs, {}, **mode) for mode in modes]


@task(cache=CACHE, requests=SMALL, timeout=SHORT, **EVERY_TASK)
def replay_variants(num_rollout: int, runs: str) -> list[TrainingOverrides]:
    """The trainings of a mixture of experts to compare: without and with the rollout's experts replayed.

    Both are colocate, which repeats itself bit by bit where `runs` asks for it, and on-policy, so that weights are no
    reason for another choice. In one precision engine and trainer agree, and there is nothing to replay: the trainer's
    is bfloat16.

    Raises:
        ConfigError: `runs` is neither `all` nor `deterministic`.
    """
    with executed("replay_variants"):
        apart = {"bf16": "true", "get_mismatch_metrics": "true"}
        return [
            _training(num_rollout, runs, apart | {"use_rollout_routing_replay": replays}, fully_async=False)
            for replays in ("false", "true")
        ]


@task(cache=CACHE, requests=SMALL, timeout=SHORT, **EVERY_TASK)
def paper_report(comparison: ArtifactRef, replays: list[ArtifactRef], runs: str, pipeline: str) -> ArtifactRef:
    """Publish `<pipeline>-report`: each claim of the paper with its number and what the comparisons show.

    `claims.json` and `report.md`. With `runs` `deterministic` speeds are left out, since a clock never repeats itself.
    """
    with (
        executed("paper_report"),
        work_directory("paper-report", comparison=comparison, replays=replays, runs=runs) as work,
    ):
        source = fetch(comparison)
        results, times = (json.loads((source / name).read_text()) for name in ("results.json", "times.json"))
        found = claims.learning(results)
        if not _repeats(runs):
            found += claims.speeds(results, times)
        tables = [results]
        for each in map(fetch, replays):
            names = ("results.json", "mismatch.json", "times.json")
            of_experts, mismatch, seconds = (json.loads((each / name).read_text()) for name in names)
            found += claims.routing_replay(of_experts, mismatch, None if _repeats(runs) else seconds)
            tables += [of_experts, mismatch]
        if not replays:
            found.append(claims.claim("routing replay's share of a step", 0.019, None, "give --expert_models"))
        pictures = {path.stem: path.read_text(encoding="utf-8") for path in sorted(source.glob("*.svg"))}
        figures = [html.figure(plot_named(name).title, picture) for name, picture in pictures.items()]
        shown = [html.table(list(rows[0]), [list(row.values()) for row in rows]) for rows in [found, *tables]]
        document = decks.show(f"Report of {pipeline}", *shown, *figures, html.lineage(None, [comparison, *replays]))
        (work / "report.html").write_text(document, encoding="utf-8")
        (work / "claims.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        for name, picture in pictures.items():
            (work / f"{name}.svg").write_text(picture, encoding="utf-8")
        head = f"# Report of {pipeline}\n\n{markdown.table(found)}\n"
        of_replays = "".join(f"{markdown.table(rows)}\n" for rows in tables[1:])
        (work / "report.md").write_text(f"{head}{of_replays}{(source / 'report.md').read_text()}", encoding="utf-8")
        return publish(work, kind="evaluation", name=f"{pipeline}-report", parents=[comparison, *replays])


def _training(num_rollout: int, runs: str, settings: dict[str, str], **mode: Any) -> TrainingOverrides:
    repeated = {"deterministic": "true"} if _repeats(runs) else {}
    return TrainingOverrides(
        num_rollout=num_rollout, lr_warmup_iters=min(10, num_rollout // 4), settings=repeated | settings, **mode
    )


def _repeats(runs: str) -> bool:
    if runs not in ("all", "deterministic"):
        raise ConfigError(f"runs={runs!r}: give 'all' or 'deterministic'")
    return runs == "deterministic"
