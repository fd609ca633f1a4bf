"""The compiled loops of a decoding step against the same mathematics in float64 tensors."""

import numpy as np
import pytest
import torch

from relax_engine.backends.engines.local.kernels import KEY_BLOCK, add_and_normalise, attention_kernel, embed, gate

ROWS, KV, COLUMNS, EPSILON = 11, 2, 3 * KEY_BLOCK, 1e-6


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def expected_attention(
    projected: np.ndarray, weight: np.ndarray, rope: np.ndarray, starts: np.ndarray, cursor: int, keys: np.ndarray,
    values: np.ndarray, *, normalise: bool,
) -> torch.Tensor:  # fmt: skip
    """Attention in float64; keys `[rows, kv, columns, dim]` with the newest column missing."""
    rows, dim, group = len(starts), weight.shape[1], weight.shape[0] - 1
    heads = torch.tensor(projected).double().view(rows, KV, group + 2, dim)
    turned = heads[:, :, :-1]
    if normalise:
        turned = turned * torch.rsqrt((turned * turned).mean(-1, keepdim=True) + EPSILON)
    turned = (turned * torch.tensor(weight)).unflatten(-1, (dim // 2, 2)).contiguous()
    turn = torch.view_as_complex(torch.tensor(rope).double().view(-1, dim // 2, 2))
    turned = torch.view_as_real(torch.view_as_complex(turned) * turn[:, None, None]).flatten(-2)
    k, v = torch.tensor(keys).double(), torch.tensor(values).double()
    k[:, :, cursor], v[:, :, cursor] = turned[:, :, group], heads[:, :, group + 1]
    scores = turned[:, :, :group] @ k.transpose(2, 3)
    column = torch.arange(k.shape[2])
    seen = (column >= torch.tensor(starts)[:, None]) & (column <= cursor)
    return torch.softmax(scores.masked_fill(~seen[:, None, None], -torch.inf), -1) @ v


@pytest.mark.parametrize(("dim", "group"), [(32, 2), (16, 1), (12, 7)])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("cursor", [20, 31, 32, 46])
def test_attention_is_softmax_of_scores_times_values(
    dim: int, group: int, normalise: bool, parallel: bool, cursor: int
) -> None:
    keys, values = normal(ROWS, KV, COLUMNS, dim, seed=1), normal(ROWS, KV, COLUMNS, dim, seed=2)
    starts = np.array([0, 0, 0, 3, 15, 16, 17, 20, 19, 5, 5])
    # Rows 0 to 2 share their first 18 columns, 9 and 10 theirs up to 17; the leader's copy is the one to be read.
    leaders, shared = np.array([0, 0, 0, 3, 4, 5, 6, 7, 8, 9, 9]), np.array([18] * 3 + [0] * 6 + [17] * 2)
    for row, leader, until in zip(range(ROWS), leaders, shared, strict=True):
        keys[row, :, :until], values[row, :, :until] = keys[leader, :, :until], values[leader, :, :until]
    projected, weight = normal(ROWS, KV * (group + 2) * dim, seed=3), normal(group + 1, dim, seed=4)
    # Positions are each row's own: media make them other than the number of columns.
    positions = np.maximum(cursor - starts, 0) + 2.5 * np.arange(ROWS)
    angles = positions[:, None] / 100.0 ** (np.arange(dim // 2) / dim)
    rope = np.stack([np.cos(angles), np.sin(angles)], -1).reshape(ROWS, dim).astype(np.float32)
    expected = expected_attention(projected, weight, rope, starts, cursor, keys, values, normalise=normalise)
    # What no row may read: the future, other rows' copies of a shared prefix in whole blocks, and the past of `start`.
    keys[:, :, cursor:], values[:, :, cursor:] = np.nan, np.nan
    keys[1:3, :, :KEY_BLOCK], values[10, :, 5:KEY_BLOCK] = np.nan, np.nan
    for row, start in enumerate(starts):
        keys[row, :, :start], values[row, :, :start] = np.nan, np.nan
    blocked = np.ascontiguousarray(keys.reshape(ROWS, KV, -1, KEY_BLOCK, dim).swapaxes(3, 4))
    out = np.empty((ROWS, KV * group * dim), np.float32)
    attend = attention_kernel(dim, group, normalise=normalise, parallel=parallel)
    attend(projected, weight, rope, np.float32(EPSILON), starts, leaders, shared, cursor, blocked, values, out)
    torch.testing.assert_close(
        torch.tensor(out).double(), expected.reshape(ROWS, -1), rtol=2e-5, atol=2e-5, equal_nan=False
    )
    stored = blocked[:, :, cursor // KEY_BLOCK, :, cursor % KEY_BLOCK]
    assert np.isfinite(stored).all()
    np.testing.assert_array_equal(values[:, :, cursor], projected.reshape(ROWS, KV, group + 2, dim)[:, :, -1])


def test_gate_is_silu_times_up_at_any_size_of_its_input() -> None:
    extremes = np.array([[-1e6, -500, -88, -20, -1, -1e-30, 0, 1e-30, 1, 20, 88, 500, 1e30]], dtype=np.float32)
    gate_up = np.concatenate([np.repeat(extremes, 5, 0), normal(5, extremes.shape[1])], axis=1)
    out = np.empty((5, extremes.shape[1]), np.float32)
    gate(gate_up, out)
    left, up = torch.tensor(gate_up).double().chunk(2, dim=1)
    torch.testing.assert_close(torch.tensor(out).double(), torch.nn.functional.silu(left) * up, rtol=1e-6, atol=1e-30)


def test_normalisation_divides_by_the_root_mean_square_of_the_sum() -> None:
    x, delta, normed, table = normal(4, 37), normal(4, 37, seed=1), np.empty((4, 37), np.float32), normal(9, 37, seed=2)
    total = torch.tensor(x).double() + torch.tensor(delta).double()
    add_and_normalise(x, delta, normed, np.float32(EPSILON))
    np.testing.assert_allclose(x, total, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(normed, torch.nn.functional.rms_norm(total, (37,), eps=EPSILON), rtol=1e-6, atol=1e-6)
    embed(np.array([8, 0, 3, 3]), table, x, normed, np.float32(EPSILON))
    np.testing.assert_array_equal(x, table[[8, 0, 3, 3]])
    expected = torch.nn.functional.rms_norm(torch.tensor(x).double(), (37,), eps=EPSILON)
    np.testing.assert_allclose(normed, expected, rtol=1e-6, atol=1e-6)


def test_what_is_not_a_number_shows() -> None:
    """Broken weights must reach the log-probs, which is where the engine looks for them."""
    bad = np.full((1, 4), np.nan, np.float32)
    out, normed = np.zeros((1, 2), np.float32), np.zeros((1, 4), np.float32)
    gate(bad, out)
    add_and_normalise(np.zeros((1, 4), np.float32), bad, normed, np.float32(EPSILON))
    assert np.isnan(out).all()
    assert np.isnan(normed).all()
