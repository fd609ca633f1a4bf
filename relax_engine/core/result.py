"""What a run leaves behind, read from its own files so that a resumed run reports the whole."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from relax_engine.components.role import Phase, busy_seconds
from relax_engine.observe.metrics import read_metrics

_LAG = "rollout/staleness/count/"
_GAPS = ("weight_sync/logprob_max_abs_diff", "train/rollout_logprob_gap")


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of `train`.

    Attributes:
        run_dir: Directory of `metrics.jsonl`, `eval.jsonl` and `timeline.json`.
        checkpoint_dir: Newest complete checkpoint iteration, if the run saved any.
        steps: Steps done over the whole run, resumed parts included.
        new_steps: Steps done by this call; 0 when the checkpoint was already at the target.
        metrics: Metrics of the last step.
        reward_curve: Mean raw reward of each step.
        losses: Loss of each step.
        staleness_histogram: Trained samples by lag in weight versions.
        logprob_max_abs_diff: Largest engine-trainer log-prob difference under equal weights; None where none was
            measured (no step, or no row without media in an asynchronous run).
        phase_seconds: Seconds of this call in which `role/phase` was under way, requests at the same time counted once;
            of a long run, over the last phases that a role remembers.
        wall_seconds: Duration of this call's training loop, without starting and ending the roles.
    """

    run_dir: str
    checkpoint_dir: str | None
    steps: int
    new_steps: int
    metrics: dict[str, float]
    reward_curve: list[float]
    losses: list[float]
    staleness_histogram: dict[int, int]
    logprob_max_abs_diff: float | None
    phase_seconds: dict[str, float] = field(default_factory=dict)
    wall_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def collect_result(
    run_dir: Path, checkpoint_dir: str | None, phases: Iterable[Phase], *, start_step: int, wall_seconds: float
) -> RunResult:
    """Assemble the result from `metrics.jsonl` and this call's phases, and write `timeline.json`."""
    phases = sorted(phases, key=lambda phase: phase.start)
    path = run_dir / "metrics.jsonl"
    records = read_metrics(path) if path.exists() else []
    staleness: Counter[int] = Counter()
    for record in records:
        for name, count in record.items():
            if name.startswith(_LAG):
                staleness[int(name.removeprefix(_LAG))] += int(count)
    (run_dir / "timeline.json").write_text(json.dumps([asdict(phase) for phase in phases]))
    return RunResult(
        run_dir=str(run_dir),
        checkpoint_dir=checkpoint_dir,
        steps=len(records),
        new_steps=sum(record["step"] >= start_step for record in records),
        metrics={name: value for name, value in records[-1].items() if name != "step"} if records else {},
        reward_curve=[record["rollout/raw_reward"] for record in records if "rollout/raw_reward" in record],
        losses=[record["train/loss"] for record in records if "train/loss" in record],
        staleness_histogram=dict(sorted(staleness.items())),
        logprob_max_abs_diff=max((record[gap] for record in records for gap in _GAPS if gap in record), default=None),
        phase_seconds=busy_seconds(phases),
        wall_seconds=round(wall_seconds, 3),
    )
