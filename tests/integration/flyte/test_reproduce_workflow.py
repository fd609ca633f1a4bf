"""The paper's comparisons at the smallest scale: complete, and the same twice where that is promised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from letters import prompts, pyflyte, settings

from examples.tiny_math.make_model import make_model
from relax_engine.lineage import ArtifactStore


def report(home: Path, model: Path, *arguments: str) -> tuple[Any, Any, str]:
    """Claims, results of the runs (those of experts behind the others), and the report in Markdown."""
    home.mkdir()
    pyflyte(
        home,
        "workflows/reproduce.py",
        "reproduce",
        *("--train_prompts", prompts(home / "train.parquet", "first", 64)),
        *("--heldout_prompts", prompts(home / "heldout.parquet", "first", 16)),
        *("--base_model", model, "--config", settings(home / "run.yaml"), *arguments),
        *("--expert_models", json.dumps([str(make_model(home / "experts", experts=8))])),
    )
    store = ArtifactStore.open(str(home / "artifacts"))
    published = store.fetch("reproduce-report")
    comparisons = [store.fetch(f"reproduce-{name}") for name in ("comparison", "experts-comparison")]
    results = [row for comparison in comparisons for row in json.loads((comparison / "results.json").read_text())]
    return json.loads((published / "claims.json").read_text()), results, (published / "report.md").read_text()


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_two_deterministic_reports_have_the_same_tables(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    one, two = (
        report(tmp_path / name, model, "--num_rollout", "4", "--runs", "deterministic")[:2] for name in ("a", "b")
    )
    assert one == two
    assert [row["mode"] for row in one[1]] == ["colocate", "hybrid", "colocate", "colocate"]
    assert one[1][0]["sampled after"] == one[1][1]["sampled after"]  # on-policy hybrid is colocate, bit by bit


@pytest.mark.long
@pytest.mark.timeout(2000)
def test_the_report_sets_the_papers_numbers_beside_ours(tmp_path: Path) -> None:
    claims, results, text = report(tmp_path / "a", make_model(tmp_path / "model"), "--num_rollout", "4")
    assert [row["mode"] for row in results] == ["colocate", "hybrid", *["fully_async"] * 4, *["colocate"] * 2]
    assert results[2]["mean lag"] == 0
    assert all(row["mean lag"] <= bound for row, bound in zip(results[2:6], (0, 1, 2, 4), strict=True))
    published, here = ({claim["claim"]: claim[side] for claim in claims} for side in ("published", "here"))
    assert published["speed of fully async off-policy over colocate"] == 1.76
    assert None not in here.values()
    assert published["log-prob gap with routing replay over without"] == 0.62
    assert here["log-prob gap with routing replay over without"] < 1
    assert 0 < here["choices of experts that engine and trainer make differently (2510.11370)"] < 0.2
    assert "| speed of fully async off-policy over colocate | 1.760 |" in text
