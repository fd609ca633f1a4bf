"""Does this machine's GPU compute what a CPU does? Minutes, one GPU.

    python tools/gpu_check.py                  # make gpu-check
    python tools/gpu_check.py --device cpu     # what has a meaning without CUDA, for the check itself
    python tools/gpu_check.py --output benchmarks/results/gpu_check.json

Every check is a process of its own with a deadline, and says "passed", "failed", or "left out" with the reason. The
exit code is 1 if one failed. What the processes do is in `tools/gpu_check_work.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

DEADLINE_S = 100.0
TOLERANCE = {"cpu": 2e-5, "cuda": 2e-3}
"""Largest difference between log-probs of two ways to compute the same in float32; TF32 is not switched on."""
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "B200": 2250e12}
"""Dense bfloat16 operations per second that the makers state, by a part of the device's name."""
MODELS = ("dense", "experts")
_WORK = Path(__file__).with_name("gpu_check_work.py")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one check ended."""

    name: str
    outcome: str
    detail: str
    numbers: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.outcome:<9} {self.name}: {self.detail}"


class WorkError(RuntimeError):
    """A process ended badly or took too long."""


def work(task: str, *arguments: str, device: str) -> dict[str, Any]:
    """What a process of `gpu_check_work.py` found; without CUDA it sees no GPU.

    Raises:
        WorkError: with the end of what it wrote.
    """
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    try:
        done = subprocess.run(
            [sys.executable, str(_WORK), task, *arguments],
            env={**os.environ, "PYTHONPATH": str(_WORK.parents[1]), **hidden},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WorkError(f"no answer within {DEADLINE_S:g} s") from error
    if done.returncode:
        raise WorkError(done.stderr.strip()[-1500:] or f"exit code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_checks(device: str, folder: Path) -> Iterator[Outcome]:
    """All checks, in order; later ones run whatever became of earlier ones."""
    for model in MODELS:
        try:
            expected = work("steps", str(folder / model), device="cpu")
            found = work("steps", str(folder / model), device=device) if device != "cpu" else expected
        except WorkError as error:
            yield Outcome(f"training steps ({model})", "failed", str(error))
        else:
            yield from step_outcomes(model, device, expected, found)
    for transport in ("broadcast", "shared_memory"):
        try:
            found = work("transfer", str(folder / "dense"), transport, device, device=device)
        except WorkError as error:
            yield Outcome(f"engine and weights by {transport}", "failed", str(error))
        else:
            yield transfer_outcome(device, transport, found)
    try:
        yield speed_outcome(work("speed", str(folder / "large"), device, device=device))
    except WorkError as error:
        yield Outcome("training speed", "failed", str(error))
    by = "on one host weights go by NCCL or through shared memory"
    yield Outcome("weights by CUDA IPC", "left out", f"not offered: {by}")
    yield Outcome("graph capture", "left out", "not offered: the embedded engine launches its kernels one by one")


def step_outcomes(model: str, device: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Outcome]:
    """Log-probs, packing, steps beside those that a CPU `expected`, and the process group of one."""
    bound = TOLERANCE[device]
    yield _judged(f"log-probs ({model})", found["transformers_gap"], bound, "beside transformers on the CPU")
    yield _judged(f"packing ({model})", found["packing_gap"], bound, "packed beside one sequence at a time")
    if device == "cpu":
        reason = "there is no GPU to compare the CPU's steps with"
        yield Outcome(f"training steps ({model})", "left out", reason)
    else:
        pairs = zip(expected["losses"] + expected["norms"], found["losses"] + found["norms"], strict=True)
        gap = max(abs(one - two) for one, two in pairs)
        yield _judged(f"training steps ({model})", gap, bound, "losses and norms beside the CPU's")
    right = found["summed"] and found["group"] == ("nccl" if device == "cuda" else "gloo")
    detail = f"{found['group']} on {found['device']}"
    yield Outcome(f"process group of one ({model})", "passed" if right else "failed", detail)


def transfer_outcome(device: str, transport: str, found: dict[str, Any]) -> Outcome:
    """A trainer's weights in an embedded engine: both then say the same of the same tokens.

    An engine on a GPU computes in bfloat16.
    """
    bound = TOLERANCE["cpu"] if device == "cpu" else 0.15
    detail = (
        f"log-prob gap {found['gap']:.2g} (at most {bound:g}), {found['sync_s']:.2f} s for {found['mb']:.1f} MB, "
        f"{found['tokens_per_s']:.0f} tokens/s sampled"
    )
    right = found["gap"] <= bound and found["moved"]
    return Outcome(f"engine and weights by {transport}", "passed" if right else "failed", detail, found)


def speed_outcome(found: dict[str, Any]) -> Outcome:
    """Trained tokens per second, and the share of the device's peak that they are."""
    peak = next((peak for part, peak in PEAKS.items() if part in found["device"]), None)
    detail = f"{found['tokens_per_s']:.0f} tokens/s, {found['parameters']:,} parameters"
    if peak is None:
        detail += f"; MFU left out: nothing here knows the peak of {found['device']}"
        return Outcome("training speed", "passed", detail, found)
    mfu = found["tokens_per_s"] * found["flops_per_token"] / peak
    detail += f", MFU {mfu:.1%} of {peak / 1e12:.0f} TFLOP/s"
    return Outcome("training speed", "passed", detail, {**found, "mfu": mfu})


def _judged(name: str, gap: float, bound: float, what: str) -> Outcome:
    outcome = "passed" if gap <= bound else "failed"
    return Outcome(name, outcome, f"{what}: largest difference {gap:.2g}, at most {bound:g}", {"gap": gap})


def main(argv: list[str] | None = None) -> int:
    """Print each outcome as it comes; 1 if a check failed, 2 where there is no such device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--output", type=Path, help="also write the outcomes as JSON")
    options = parser.parse_args(argv)
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device here; --device cpu checks what has a meaning without one", file=sys.stderr)
        return 2
    started, outcomes = time.monotonic(), []
    print(f"torch {torch.__version__} on {options.device}", flush=True)
    with tempfile.TemporaryDirectory(prefix="relax-gpu-check-") as folder:
        work("models", folder, options.device, device="cpu")
        for outcome in run_checks(options.device, Path(folder)):
            outcomes.append(outcome)
            print(outcome, flush=True)
    failed = sum(outcome.outcome == "failed" for outcome in outcomes)
    left_out = sum(outcome.outcome == "left out" for outcome in outcomes)
    passed = len(outcomes) - failed - left_out
    print(f"{passed} passed, {failed} failed, {left_out} left out, in {time.monotonic() - started:.0f} s")
    if options.output is not None:
        facts = {"torch": torch.__version__, "device": options.device, "checks": [asdict(each) for each in outcomes]}
        options.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
