"""On-policy distillation: what the student learns, and from whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics


@pytest.mark.long
def test_a_student_that_is_its_own_teacher_has_nothing_to_learn_at_first(
    ray_cluster: None, tiny: Any, tmp_path: Path
) -> None:
    """Loss mode on the teacher's likeliest tokens, reward left out: the divergence starts at 0 and stays near it."""
    config = tiny.config(
        tmp_path,
        num_rollout=2,
        resource={"actor": [1, 1], "rollout": [1, 1], "teacher": [1, 1]},
        use_opd=True,
        teacher_hf_checkpoint=str(tiny.model),
        opd_loss_coef=1.0,
        opd_log_prob_top_k=4,
        opd_kl_type="jsd",
        lr=1e-2,
    )
    result = train(config)
    lines = read_metrics(Path(result.run_dir) / "metrics.jsonl")
    # The teacher is the student's first self: both agree on every token before the first step, not after it.
    assert abs(lines[0]["train/opd_loss"]) < 1e-6
    assert abs(lines[0]["train/opd_reverse_kl"]) < 1e-4
    assert lines[1]["train/opd_loss"] > 1e-5
    assert any(name.startswith("teacher/") for name in result.phase_seconds)


@pytest.mark.long
@pytest.mark.parametrize(
    "mode",
    [
        {},
        {"hybrid": True, "max_staleness": 1},
        {
            "fully_async": True,
            "max_staleness": 1,
            "resource": {
                **{role: [1, 1] for role in ("actor", "rollout", "actor_fwd", "teacher")},
                "advantages": [1, 0],
            },
        },
    ],
    ids=["colocate", "hybrid", "fully-async"],
)
def test_a_teacher_in_the_training_backend(mode: Any, ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    """Advantage mode beside the reward: the gap to the student's first self opens as the reward pulls it away."""
    config = tiny.config(
        tmp_path,
        num_rollout=4,
        use_opd=True,
        opd_type="megatron",
        opd_teacher_load=str(tiny.model),
        opd_kl_coef=0.1,
        lr=1e-2,
        **mode,
    )
    lines = read_metrics(Path(train(config).run_dir) / "metrics.jsonl")
    gaps = [line["train/opd_reverse_kl"] for line in lines]
    assert abs(gaps[0]) < 1e-4
    assert gaps[-1] > 1e-2
