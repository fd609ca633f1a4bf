import numpy as np

from relax_engine.backends.engines.local.rng import derive_seed, uniforms


def test_a_uniform_depends_on_seed_and_position_only() -> None:
    seeds = np.arange(50, dtype=np.uint64)
    grid = uniforms(seeds, np.arange(40)[:, None])
    assert grid.shape == (40, 50)
    assert grid.dtype == np.float32
    assert grid[7, 31] == uniforms(np.array([31], dtype=np.uint64), np.array([7]))[0]


def test_uniforms_are_uniform_and_uncorrelated() -> None:
    draws = uniforms(np.arange(1000, dtype=np.uint64), np.arange(500)[:, None]).astype(np.float64)
    assert draws.min() >= 0.0
    assert draws.max() <= 1 - 2.0**-23
    counts = np.histogram(draws, bins=64, range=(0, 1))[0]
    # 63 degrees of freedom: 0.9999 quantile of chi-square is 115.
    assert ((counts - draws.size / 64) ** 2 / (draws.size / 64)).sum() < 115
    centred = draws - 0.5
    for shifted in (centred[1:] * centred[:-1], centred[:, 1:] * centred[:, :-1]):
        # The mean product of independent uniforms has deviation 1/12/sqrt(n).
        assert abs(shifted.mean()) < 5 / 12 / np.sqrt(shifted.size)


def test_derived_seeds_differ_and_fit_a_sampling_seed() -> None:
    seeds = {derive_seed(base, counter) for base in range(20) for counter in range(500)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**63 for seed in seeds)
