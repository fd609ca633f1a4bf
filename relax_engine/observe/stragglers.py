"""Which prompt group held a step, and what held it: an engine, an environment or a reward, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from relax_engine.observe.lives import step_groups
from relax_engine.observe.rollouts.filters import QueryError
from relax_engine.observe.rollouts.query import Rollouts


@dataclass(frozen=True, slots=True)
class Straggler:
    """The group of a step whose samples came last, and by how much it held up the one before it.

    Attributes:
        group_index: Which group.
        behind: Seconds between its last sample and that of the group before.
        median_behind: Seconds between its last sample and the median group's.
        stage: `start`, `generate`, `environment` or `reward`: in which of them it lost most against the median group.
        lost: Seconds that it lost there.
        holder: The engine's address, the environment or the reward, by `stage`; None where the run does not say, and
            where sampling began late.
        slowest_sample: Index of the sample that ended last.
        response_length: Tokens of that sample.
    """

    group_index: int
    behind: float
    median_behind: float
    stage: str
    lost: float
    holder: str | None
    slowest_sample: int
    response_length: int

    def sentence(self) -> str:
        """For people."""
        what = {"generate": "engine", "start": "waiting for its start"}.get(self.stage, self.stage)
        holder = f" {self.holder}" if self.holder else ""
        return (
            f"group {self.group_index} came last, {self.behind:.3f} s after the one before and "
            f"{self.median_behind:.3f} s after the median; it lost most in {what}{holder}: {self.lost:.3f} s "
            f"(sample {self.slowest_sample}, {self.response_length} tokens)"
        )


def straggler(run_dir: Path, step: int) -> Straggler:
    """Which group held the step.

    Raises:
        QueryError: no samples of this step were recorded with their times, or only one group.
    """
    groups = sorted(step_groups(run_dir, step), key=lambda group: group.end)
    if len(groups) < 2:
        raise QueryError(f"{run_dir} has {len(groups)} group(s) with times of step {step}; two at least are compared")
    last, middle = groups[-1], groups[len(groups) // 2]
    lost = {stage: last.longest(stage) - middle.longest(stage) for stage in ("generate", "environment", "reward")}
    lost["start"] = last.start - middle.start
    stage = max(lost, key=lambda stage: lost[stage])
    slowest = last.slowest
    return Straggler(
        last.index,
        last.end - groups[-2].end,
        last.end - middle.end,
        stage,
        lost[stage],
        slowest["engine"] if stage == "generate" else _name(run_dir, step, slowest["sample_index"], stage),
        slowest["sample_index"],
        slowest["response_length"],
    )


def _name(run_dir: Path, step: int, sample_index: int, stage: str) -> str | None:
    """The environment or reward of a sample: what its metadata names, where that counts, else the run's."""
    if stage == "start":
        return None
    path = run_dir / "config.yaml"
    sections = yaml.safe_load(path.read_text()) if path.is_file() else {}
    flags: dict[str, Any] = {}
    for name, value in sections.items():
        flags |= value if isinstance(value, Mapping) else {name: value}
    if stage == "environment":
        names = [flags.get("rollout_interaction_env_path"), flags.get("custom_generate_function_path")]
        names.append(flags.get("agent_command"))
    else:
        with Rollouts(run_dir) as rollouts:
            metadata = json.loads(rollouts.sample(step, sample_index)["metadata"] or "{}")
        names = [flags.get("custom_rm_path"), metadata.get("rm_type"), flags.get("rm_type")]
    return next((str(name) for name in names if name), None)
