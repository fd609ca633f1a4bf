"""Runs that over-sample, filter, refill, cut responses off and continue them, with evaluations on the way."""

from pathlib import Path
from typing import Any

import core_rewards
import pytest

from relax_engine.core.result import RunResult
from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics

STEPS, SAMPLES = 5, 16
FILTER = "relax_engine.rollout.filters.check_reward_nonzero_std"


@pytest.fixture(scope="module")
def runs(ray_cluster: None, tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunResult]:
    """Both ways to cut responses off: because the rollout is full, and because new weights come."""
    common = {
        "num_rollout": STEPS,
        "partial_rollout": True,
        "dynamic_sampling_filter_path": FILTER,
        "custom_rm_path": f"{core_rewards.HERE}:half",
        "rollout_max_response_len": 120,
        "rollout_stop_token_ids": list(range(10, 18)),  # lengths differ much
        "eval_prompt_data": {"few": [f"{tiny.prompts}[0:4]"]},
        "eval_interval": 2,
    }
    results = {}
    results["colocate"] = train(
        tiny.config(
            tmp_path_factory.mktemp("partial"),
            **common,
            over_sampling_batch_size=7,
            max_staleness=2,
            partial_rollout_max_aborted_count=2,
        )
    )
    results["fully_async"] = train(
        tiny.config(
            tmp_path_factory.mktemp("partial"),
            **common,
            fully_async=True,
            max_staleness=2,
            mask_offpolicy_in_partial_rollout=True,
            resource={"actor": [1, 1], "rollout": [1, 2], "actor_fwd": [1, 1], "advantages": [1, 0]},
        )
    )
    return results


@pytest.mark.parametrize("mode", ["colocate", "fully_async"])
def test_every_sample_is_trained_filtered_or_in_flight(runs: dict[str, RunResult], mode: str) -> None:
    records = read_metrics(Path(runs[mode].run_dir) / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(STEPS))
    filtered = 0.0
    for record in records:
        ended = sum(record[f"stream/{outcome}"] for outcome in ("trained", "filtered", "dropped_stale"))
        assert record["stream/produced"] == ended + record["stream/in_flight"]
        assert record["perf/samples"] == SAMPLES
        assert record["rollout/zero_std_ratio"] == 0.0
        assert record["stream/dropped_stale"] == 0
        assert 0 <= record["rollout/staleness/min"] <= record["rollout/staleness/max"] <= 2
        filtered += sum(value for name, value in record.items() if name.startswith("rollout/groups/filtered/"))
    assert filtered > 0
    assert records[-1]["stream/trained"] == STEPS * SAMPLES
    assert records[-1]["stream/filtered"] == 4 * filtered or mode == "fully_async"


def test_what_a_full_rollout_cuts_off_is_continued(runs: dict[str, RunResult]) -> None:
    records = read_metrics(Path(runs["colocate"].run_dir) / "metrics.jsonl")
    totals = {
        name: sum(record.get(f"rollout/groups/{name}", 0.0) for record in records)
        for name in ("cut_off", "continued", "begun_again")
    }
    assert totals["cut_off"] > 0
    assert totals["continued"] > 0
    # Some of what was trained was begun by older weights.
    assert runs["colocate"].staleness_histogram.get(1, 0) > 0


@pytest.mark.parametrize("mode", ["colocate", "fully_async"])
def test_evaluations_are_of_the_version_that_they_name(runs: dict[str, RunResult], mode: str) -> None:
    lines = read_metrics(Path(runs[mode].run_dir) / "eval.jsonl")
    assert [(line["step"], line["version"]) for line in lines] == [(0, 0), (2, 2), (4, 4)]
