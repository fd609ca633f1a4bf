"""Functions of a user file that see rollouts and evaluations, called as documented."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from relax_engine.rollout.evaluation import EvaluationResult
from relax_engine.rollout.hooks import RolloutHooks
from relax_engine.types import Sample, SampleGroup, SampleStatus

FLAGS = (
    "rollout_sample_filter_path",
    "rollout_all_samples_process_path",
    "custom_rollout_log_function_path",
    "custom_eval_rollout_log_function_path",
)
USER = """
def drop_short(args, groups):
    for group in groups:
        for sample in group:
            sample.remove_sample = sample.response_length < args.shortest

def remember(args, all_samples, data_source):
    data_source.seen += [group[0].group_index for group in all_samples]

def log(rollout_id, args, samples, extra_metrics, time):
    extra_metrics["rollout/mine"] = rollout_id + len(samples) + time
    return args.quiet

def log_eval(rollout_id, args, data, extra_metrics):
    (name, entry), = data.items()
    extra_metrics[f"{name}/total"] = sum(entry["rewards"]) + rollout_id
    assert len(entry["samples"]) == len(entry["truncated"]) == len(entry["rewards"])
    return args.quiet
"""
Load = Callable[..., RolloutHooks]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    file = tmp_path / "mine.py"
    file.write_text(USER)

    def load(quiet: bool = False, **functions: str) -> RolloutHooks:
        paths = dict.fromkeys(FLAGS) | {name: f"{file}:{function}" for name, function in functions.items()}
        return RolloutHooks.from_config(SimpleNamespace(**paths, shortest=3, quiet=quiet))

    return load


@pytest.fixture
def groups() -> list[SampleGroup]:
    return [
        [Sample(group_index=number, index=2 * number + i, response_length=number + i) for i in range(2)]
        for number in (1, 2)
    ]


def test_without_functions_nothing_happens(load: Load, groups: list[SampleGroup]) -> None:
    hooks, metrics = load(), {}
    hooks.filter_samples(groups)
    hooks.process_all(groups, None)  # type: ignore[arg-type]
    assert not hooks.log_rollout(0, groups, metrics, 1.0)
    assert not hooks.log_evaluation(0, {}, metrics)
    assert metrics == {}
    assert not any(sample.remove_sample for group in groups for sample in group)


def test_a_sample_filter_takes_samples_out_of_the_loss(load: Load, groups: list[SampleGroup]) -> None:
    load(rollout_sample_filter_path="drop_short").filter_samples(groups)
    assert [sample.remove_sample for group in groups for sample in group] == [True, True, True, False]


def test_all_samples_are_seen(load: Load, groups: list[SampleGroup]) -> None:
    source: Any = SimpleNamespace(seen=[])
    load(rollout_all_samples_process_path="remember").process_all(groups, source)
    assert source.seen == [1, 2]


@pytest.mark.parametrize("quiet", [False, True])
def test_a_log_function_adds_metrics_and_may_replace_the_built_in_ones(
    load: Load, groups: list[SampleGroup], quiet: bool
) -> None:
    hooks = load(quiet, custom_rollout_log_function_path="log", custom_eval_rollout_log_function_path="log_eval")
    metrics: dict[str, Any] = {}
    assert hooks.log_rollout(3, groups, metrics, 0.5) is quiet
    assert metrics == {"rollout/mine": 3 + 4 + 0.5}
    groups[0][1].status = SampleStatus.TRUNCATED
    result = EvaluationResult(np.array([[1.0, 0.5], [0.0, 0.25]]), np.array([1, 2, 2, 3]), 0.25, groups)
    assert result.to_data()["truncated"] == [False, True, False, False]
    assert hooks.log_evaluation(2, {"few": result.to_data()}, metrics) is quiet
    assert metrics["few/total"] == 3.75
