"""How much was computed in a step and at what rate: tokens, operations, and the share of what the devices could do.

What lives here: counting, and the metrics. What does not: the formula and the peaks (`relax_engine.observe.flops`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from relax_engine.checkpoint.families import model_spec
from relax_engine.checkpoint.hf_reader import read_config
from relax_engine.observe.flops import BACKWARD, ModelFlops

TRAIN = "actor_train"
_MFU = {TRAIN: "actor_train", "log_probs": "actor_infer", "ref_log_probs": "ref_infer"}
_TERA = 1e12


class Throughput:
    """Counts passes of the actor's devices, and says at the end of a step what they amount to."""

    def __init__(self, checkpoint: str, devices: int, peak_tflops: float | None) -> None:
        """Start at nothing.

        Args:
            checkpoint: Hugging Face directory of the model.
            devices: How many the actor has.
            peak_tflops: What each can do at most, in 10^12 operations a second; where unknown there is no utilization.
        """
        self._flops = ModelFlops.of(model_spec(read_config(Path(checkpoint))))
        self._devices, self._peak = devices, peak_tflops
        self._done: defaultdict[str, float] = defaultdict(float)

    def forward(self, name: str, lengths: np.ndarray) -> None:
        """A forward pass of the kind `name` over sequences of these many tokens."""
        self._done[name] += self._flops.forward(lengths)

    def trained(self, lengths: np.ndarray) -> None:
        """A forward and backward pass."""
        self._done[TRAIN] += (1.0 + BACKWARD) * self._flops.forward(lengths)

    def take(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """`perf/..._tflops` and `perf/mfu/...` of what was counted since the last call.

        `seconds` says for each kind of pass how long it took; kinds without a time are left out.
        """
        metrics: dict[str, float] = {}
        for name, operations in self._done.items():
            taken = seconds.get(name, 0.0)
            if taken <= 0.0 or name not in _MFU:
                continue
            tflops = operations / _TERA / taken / self._devices
            metrics[f"perf/{name}_tflops"] = tflops
            if self._peak is not None:
                metrics[f"perf/mfu/{_MFU[name]}"] = tflops / self._peak
        self._done.clear()
        if self._peak is not None:
            metrics["perf/device_peak_tflops"] = self._peak
        return metrics
