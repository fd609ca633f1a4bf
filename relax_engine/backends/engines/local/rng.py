"""Counter-based uniform numbers: a function of (seed, position) and nothing else.

SplitMix64 (Steele, Lea, Flood 2014), vectorised in numpy over uint64; no state is kept, so a sample does
not depend on what else runs, and a sequence continues after any interruption.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STREAM = np.uint64(0xD1B54A32D192ED03)
_MASK = (1 << 64) - 1


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """Uniforms in `[0, 1 - 2**-23]` for every (seed, position); the two arrays broadcast.

    23 bits keep `u * total < total` in float32 for any total near one, which the inverse-CDF draw needs.
    """
    keys = _mix(seeds + _GOLDEN)
    bits = _mix(keys ^ (positions.astype(np.uint64) * _STREAM + _GOLDEN))
    return (bits >> np.uint64(41)).astype(np.float32) * np.float32(2.0**-23)


def derive_seed(base: int, counter: int) -> int:
    """The seed of the `counter`-th request that brought none, from the engine's `--random-seed`."""
    value = np.array([(base * 0x9E3779B97F4A7C15 + counter) & _MASK], dtype=np.uint64)
    return int(_mix(value + _GOLDEN)[0] >> np.uint64(1))
