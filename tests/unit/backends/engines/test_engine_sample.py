import numpy as np
import pytest
import torch

from relax_engine.backends.engines.local.params import SamplingParams
from relax_engine.backends.engines.local.sampling import RowSampling, sample, truncate

PROBS = torch.tensor([[0.4, 0.3, 0.15, 0.1, 0.05]])


def draw(params: SamplingParams, uniform: float, logits: torch.Tensor) -> tuple[int, float]:
    rows = RowSampling.of([params], device=torch.device("cpu"))
    scratch = torch.empty_like(logits), torch.empty_like(logits)
    tokens, log_probs = sample(logits.clone(), torch.tensor([[uniform]]), rows, *scratch)
    return int(tokens), float(log_probs)


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.39, 0), (0.41, 1), (0.69, 1), (0.71, 2), (0.96, 4), (1 - 2.0**-23, 4)]
)
def test_inverse_cdf_picks_the_token_that_covers_the_uniform(uniform: float, token: int) -> None:
    drawn, log_prob = draw(SamplingParams(), uniform, PROBS.log())
    assert drawn == token
    assert log_prob == pytest.approx(np.log(float(PROBS[0, token])), abs=1e-6)


def test_a_token_of_zero_probability_is_never_drawn() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]])
    assert {draw(SamplingParams(), u, logits)[0] for u in (0.0, 0.25, 0.5, 0.75, 1 - 2.0**-23)} == {1, 3}


@pytest.mark.parametrize("temperature", [0.0, 1e-30])
def test_greedy_reports_the_log_prob_at_temperature_one(temperature: float) -> None:
    token, log_prob = draw(SamplingParams(temperature=temperature), 0.99, PROBS.log())
    assert (token, log_prob) == (0, pytest.approx(np.log(0.4), abs=1e-6))


def test_temperature_scales_before_the_softmax() -> None:
    _, log_prob = draw(SamplingParams(temperature=0.5), 0.0, PROBS.log())
    assert log_prob == pytest.approx(np.log(0.16 / (0.16 + 0.09 + 0.0225 + 0.01 + 0.0025)), abs=1e-6)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(top_k=2), [0, 1]),
        (SamplingParams(top_p=0.7), [0, 1]),
        (SamplingParams(top_p=0.71), [0, 1, 2]),
        (SamplingParams(top_p=0.1), [0]),
        (SamplingParams(min_p=0.3), [0, 1, 2]),
        (SamplingParams(top_k=4, top_p=0.9, min_p=0.5), [0, 1]),
    ],
)
def test_truncation_keeps_and_renormalises(params: SamplingParams, kept: list[int]) -> None:
    both = RowSampling.of([params, SamplingParams()], device=torch.device("cpu"))
    result = truncate(PROBS.repeat(2, 1), both)
    expected = torch.zeros(5)
    expected[kept] = PROBS[0, kept] / PROBS[0, kept].sum()
    torch.testing.assert_close(result[0], expected)
    assert torch.equal(result[1], PROBS[0]), "a row that does not truncate is untouched"
