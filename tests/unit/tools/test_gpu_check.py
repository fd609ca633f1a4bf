"""How what the checks of a GPU found is judged."""

from __future__ import annotations

from typing import Any

import pytest

from tools.gpu_check import Outcome, speed_outcome, step_outcomes, transfer_outcome

STEPS: dict[str, Any] = {
    "transformers_gap": 1e-6,
    "packing_gap": 0.0,
    "losses": [2.0, 1.5],
    "norms": [1.0, 0.9],
    "summed": True,
    "group": "gloo",
    "device": "a CPU",
}
ON_GPU: dict[str, Any] = {**STEPS, "group": "nccl", "device": "G"}
TRANSFER: dict[str, Any] = {"gap": 1e-6, "moved": True, "sync_s": 0.1, "mb": 2.0, "tokens_per_s": 1e4}


def _steps(device: str, **changes: Any) -> dict[str, str]:
    found = {**(ON_GPU if device == "cuda" else STEPS), **changes}
    return {each.name.partition(" (")[0]: each.outcome for each in step_outcomes("dense", device, STEPS, found)}


def test_steps_that_agree_pass() -> None:
    assert set(_steps("cuda").values()) == {"passed"}
    assert _steps("cpu") == {**dict.fromkeys(_steps("cuda"), "passed"), "training steps": "left out"}


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"losses": [2.0, 1.51]}, "training steps"),
        ({"norms": [1.01, 0.9]}, "training steps"),
        ({"transformers_gap": 0.01}, "log-probs"),
        ({"packing_gap": 0.01}, "packing"),
        ({"group": "gloo"}, "process group of one"),
        ({"summed": False}, "process group of one"),
    ],
)
def test_one_difference_fails_one_check(changes: dict[str, Any], failed: str) -> None:
    assert [name for name, outcome in _steps("cuda", **changes).items() if outcome == "failed"] == [failed]


def test_an_engine_has_the_new_weights_and_says_what_the_trainer_does() -> None:
    def outcome(device: str, **changes: Any) -> str:
        return transfer_outcome(device, "broadcast", {**TRANSFER, **changes}).outcome

    assert outcome("cpu") == outcome("cuda", gap=0.1) == "passed"
    assert outcome("cpu", gap=1e-3) == outcome("cuda", gap=0.2) == outcome("cpu", moved=False) == "failed"


def test_utilization_is_of_the_peak_that_is_known() -> None:
    found = {"device": "NVIDIA A100-SXM", "parameters": 10**9, "tokens_per_s": 26e3, "flops_per_token": 6e9}
    known: Outcome = speed_outcome(found)
    assert known.numbers["mfu"] == pytest.approx(0.5)  # 26,000 x 6e9 of 312e12
    assert "MFU 50.0%" in known.detail
    assert "MFU left out" in speed_outcome({**found, "device": "a CPU"}).detail
