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
    """Claims, results of the runs, and the report in Markdown."""
    home.mkdir()
    pyflyte(
        home,
        "workflows/reproduce.py",
        "reproduce",
        *("--train_prompts", prompts(home / "train.parquet", "first", 64)),
        *("--heldout_prompts", prompts(home / "heldout.parquet", "first", 16)),
        *("--base_model", model, "--config", settings(home / "run.yaml"), *arguments),
    )
    store = ArtifactStore.open(str(home / "artifacts"))
    published, comparison = (store.fetch(f"reproduce-{name}") for name in ("report", "comparison"))
    claims, results = (published / "claims.json").read_text(), (comparison / "results.json").read_text()
    return json.loads(claims), json.loads(results), (published / "report.md").read_text()


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_two_deterministic_reports_have_the_same_tables(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    one, two = (
        report(tmp_path / name, model, "--num_rollout", "4", "--runs", "deterministic")[:2] for name in ("a", "b")
    )
    assert one == two
    assert [row["mode"] for row in one[1]] == ["colocate", "hybrid"]
    assert one[1][0]["sampled after"] == one[1][1]["sampled after"]  # on-policy hybrid is colocate, bit by bit


@pytest.mark.long
@pytest.mark.timeout(2000)
def test_the_report_sets_the_papers_numbers_beside_ours(tmp_path: Path) -> None:
    claims, results, text = report(tmp_path / "a", make_model(tmp_path / "model"), "--num_rollout", "4")
    assert [row["mode"] for row in results] == ["colocate", "hybrid", *["fully_async"] * 4]
    assert results[2]["mean lag"] == 0
    assert all(row["mean lag"] <= bound for row, bound in zip(results[2:], (0, 1, 2, 4), strict=True))
    published = {claim["claim"]: claim["published"] for claim in claims}
    assert published["speed of fully async off-policy over colocate"] == 1.76
    assert all(claim["here"] is not None for claim in claims[:-1])
    assert "| speed of fully async off-policy over colocate | 1.760 |" in text
