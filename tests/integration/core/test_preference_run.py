"""A short DPO run: pairs from a file, reference log-probs from the actor's snapshot, parts and data-parallel ranks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics


@pytest.mark.long
def test_margins_grow_from_zero(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"Reverse: {word}", "better": word[::-1], "worse": word} for word in ("abc", "dce", "fg", "hij")]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tiny.config(
        tmp_path / "run",
        loss_type="dpo",
        prompt_data=[str(pairs)],
        label_key="better",
        rejected_key="worse",
        custom_rm_path=None,
        resource={"actor": [1, 2]},
        global_batch_size=4,
        num_iters_per_train_update=2,
        num_rollout=3,
        dpo_beta=0.5,
        lr=1e-3,
        apply_chat_template=False,
    )
    lines = read_metrics(Path(train(config).run_dir) / "metrics.jsonl")
    # Before the first step policy and reference are the same: every margin is 0 and a pair costs log 2.
    assert lines[0]["train/loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert lines[0]["train/dpo_margin"] == pytest.approx(0.0, abs=1e-3)
    assert lines[0]["perf/samples"] == 8
    assert lines[2]["train/loss"] < lines[1]["train/loss"] < lines[0]["train/loss"]
    assert lines[2]["train/dpo_margin"] > 0
