"""A run that serves the judge of its rewards: every row is judged while the judge's engines come, die and go."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from chaos import ChaosRun
from scaled import Scaled

from relax_engine.observe.metrics import read_metrics

pytestmark = pytest.mark.long

STEPS, ROWS = 80, 16
QUESTION = {
    "messages": [{"role": "user", "content": "Is four even?"}],
    "sampling_params": {"temperature": 0, "max_new_tokens": 8},
}


@pytest.mark.timeout(400)
def test_the_judge_scales(tiny: Any, tmp_path: Path) -> None:
    from examples.tiny_math.make_model import make_model

    model = make_model(tmp_path / "judge")  # with room for a judge's prompt
    facts = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(facts | {"max_position_embeddings": 1024}))
    flags: dict[str, Any] = {
        "hybrid": True,
        "max_staleness": 1,
        "num_rollout": STEPS,
        "custom_rm_path": None,
        "rm_type": "genrm",
        "reward_key": "score",
        "genrm_model_path": str(model),
        "genrm_engine_config": {"max_context_len": 1024},
        "genrm_sampling_config": {"max_response_len": 4},
        "resource": {"actor": (1, 1), "rollout": (1, 1), "genrm": (1, 1)},
        "save": str(tmp_path / "ckpt"),
    }
    run = ChaosRun(tiny, tmp_path / "run", flags)
    judge = Scaled(run, "genrm")
    try:
        run.start()
        assert run.wait_for_step(1, 300), run.report()
        first = judge.ask("/generate", QUESTION)
        judge.scale("scale_out", "ACTIVE", num_replicas=2)
        assert [engine["origin"] for engine in judge.engines()] == ["initial", "ray_native"]
        assert len(Scaled(run).engines()) == 1  # the rollout's are others
        before = judge.engines()[0]
        os.kill(before["pid"], signal.SIGKILL)
        judge.until(lambda: judge.engines()[0]["pid"] != before["pid"], "the judge's engine is started again")
        judge.until(lambda: {engine["status"] for engine in judge.engines()} == {"active"}, "both serve")
        assert {judge.ask("/generate", QUESTION)["response"] for _ in range(4)} == {first["response"]}
        with pytest.raises(urllib.error.HTTPError, match="422"):
            judge.ask("/scale_out", {"num_replicas": "many"})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            judge.ask("/generate", QUESTION | {"messages": [{"role": "user", "content": "long " * 1000}]})
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{run.address()}/genrm/engines", timeout=10)
        judge.scale("scale_in", "COMPLETED", num_replicas=1)
        run.finish(240)
        run.audit(STEPS, ROWS)
        # A model without training says neither yes nor no: each of its answers is counted as one that cannot be read.
        records = read_metrics(run.run_dir / "metrics.jsonl")
        assert {record["rollout/judge_failures"] for record in records} == {1.0}
    finally:
        run.stop()
