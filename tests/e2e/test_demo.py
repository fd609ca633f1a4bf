"""`make demo`'s command from prompts to published model, short; then again, from the cache alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from relax_engine.lineage import ArtifactStore

ROOT = Path(__file__).resolve().parents[2]
STEPS = 4
SAMPLES_PER_STEP = 128


class Demo:
    """A home (Flyte's cache), a build directory and an artifact store of its own."""

    def __init__(self, root: Path) -> None:
        self.build = root / "build"
        self.environment = {
            **os.environ,
            "HOME": str(root / "home"),
            "RELAX_ARTIFACTS": str(root / "artifacts"),
            "RELAX_WORK": str(root / "work"),
            "OMP_NUM_THREADS": "1",
        }

    def run(self) -> tuple[dict[str, Any], str]:
        """Run the demo; its report and what it printed."""
        command = ["-m", "examples.tiny_math.demo", "--num-rollout", str(STEPS), "--build", str(self.build)]
        printed = self.python(*command)
        return json.loads((self.build / "demo_report.json").read_text()), printed

    def python(self, *arguments: str) -> str:
        """Standard output of this Python; a failure shows everything it printed."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return Demo(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def first(demo: Demo) -> tuple[dict[str, Any], str]:
    return demo.run()


@pytest.fixture(scope="module")
def model(demo: Demo, first: tuple[dict[str, Any], str]) -> Path:
    return Path(first[0]["model_path"])


@pytest.mark.timeout(600)
def test_the_report_holds_what_happened(first: tuple[dict[str, Any], str]) -> None:
    report, printed = first
    assert len(report["reward_curve"]) == STEPS
    assert report["staleness_histogram"] == {"0": STEPS * SAMPLES_PER_STEP}
    assert report["logprob_max_abs_diff"] < 1e-3
    assert report["mode"] == "colocate"
    assert report["cache_hits"] == 0
    assert 0.15 < report["accuracy_before"] < 0.75
    assert {entry["kind"] for entry in report["artifacts"].values()} >= {"dataset", "checkpoint", "run", "evaluation"}
    assert all(len(entry["digest"]) == 64 for entry in report["artifacts"].values())
    assert report["wall_seconds"]["total"] >= report["wall_seconds"]["train"]
    assert report["evaluate_command"] in printed


@pytest.mark.timeout(300)
def test_a_second_run_executes_nothing(demo: Demo, first: tuple[dict[str, Any], str]) -> None:
    report, printed = demo.run()
    assert report["executed"] == []
    assert report["cache_hits"] == report["tasks"]
    assert f"{report['tasks']} of {report['tasks']} tasks from cache" in printed
    assert report["accuracy_after"] == first[0]["accuracy_after"]


@pytest.mark.timeout(300)
def test_the_exported_model_scores_the_reported_accuracy_in_transformers(
    first: tuple[dict[str, Any], str], demo: Demo, model: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    store = ArtifactStore.open(demo.environment["RELAX_ARTIFACTS"])
    heldout = next(ref for ref in first[0]["artifacts"] if ref.startswith("tiny-math-heldout@"))
    rows = pq.read_table(store.fetch(heldout), columns=["prompt", "label"]).to_pylist()
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    network = AutoModelForCausalLM.from_pretrained(model).eval()
    prompts = [tokenizer.apply_chat_template(r["prompt"], tokenize=False, add_generation_prompt=True) for r in rows]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        output = network.generate(**inputs, do_sample=False, max_new_tokens=12)
    texts = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    accuracy = sum(text.strip() == row["label"] for text, row in zip(texts, rows, strict=True)) / len(rows)
    # Two greedy decoders may break an exact tie differently: at most one word in 512.
    assert accuracy == pytest.approx(first[0]["greedy_accuracy_after"], abs=1.5 / len(rows))


@pytest.mark.timeout(120)
def test_lineage_leads_from_the_model_to_the_raw_prompts(first: tuple[dict[str, Any], str], demo: Demo) -> None:
    shown = demo.python("-m", "relax_engine.cli.main", "lineage", "show", first[0]["model"])
    for name in ("tiny-math-model@v1", "tiny-math-run@v1", "tiny-math-checkpoint@v1", "tiny-math-train@v1"):
        assert name in shown
    assert "raw" in shown
