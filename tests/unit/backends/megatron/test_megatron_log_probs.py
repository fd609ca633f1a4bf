"""The fused log-softmax: values and gradients against torch.distributions, vocabulary padding."""

from __future__ import annotations

import pytest
import torch

from relax_engine.backends.megatron.log_probs import VocabSlice, likeliest, token_log_probs

ROWS, VOCAB = 7, 11
WHOLE = VocabSlice(0, VOCAB, None)


def _inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, VOCAB, generator=generator, dtype=torch.float32) * 3
    return logits.requires_grad_(), torch.randint(0, VOCAB, (ROWS,), generator=generator)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.7])
def test_values_and_gradients_equal_categorical(temperature: float) -> None:
    logits, targets = _inputs()
    log_probs, entropy = token_log_probs(logits, targets, WHOLE, temperature=temperature, entropy=True)
    assert entropy is not None
    expected = torch.distributions.Categorical(logits=logits / temperature)
    torch.testing.assert_close(log_probs, expected.log_prob(targets))
    torch.testing.assert_close(entropy, expected.entropy())
    ours, theirs = torch.linspace(-1, 2, ROWS), torch.linspace(1, -1, ROWS)
    [actual] = torch.autograd.grad((ours * log_probs + theirs * entropy).sum(), logits)
    loss = (ours * expected.log_prob(targets) + theirs * expected.entropy()).sum()
    torch.testing.assert_close(actual, torch.autograd.grad(loss, logits)[0])


def test_log_probs_alone_have_the_same_gradient() -> None:
    logits, targets = _inputs()
    log_probs, entropy = token_log_probs(logits, targets, WHOLE, temperature=0.5)
    assert entropy is None
    [actual] = torch.autograd.grad(log_probs[:4].sum(), logits)
    expected = (logits / 0.5).log_softmax(-1).gather(1, targets[:, None])[:4].sum()
    torch.testing.assert_close(actual, torch.autograd.grad(expected, logits)[0])


def test_several_targets_of_a_row() -> None:
    logits, targets = _inputs()
    several = torch.stack([targets, (targets + 1) % VOCAB, targets], dim=1)  # one of them twice
    log_probs, entropy = token_log_probs(logits, several, WHOLE, temperature=0.5, entropy=True)
    assert entropy is not None
    expected = (logits / 0.5).log_softmax(-1)
    torch.testing.assert_close(log_probs, expected.gather(1, several))
    weights = torch.linspace(-1, 2, log_probs.numel()).view_as(log_probs)
    [actual] = torch.autograd.grad((weights * log_probs).sum() + entropy.sum(), logits)
    loss = (weights * expected.gather(1, several)).sum() - (expected.exp() * expected).sum()
    torch.testing.assert_close(actual, torch.autograd.grad(loss, logits)[0])


def test_the_likeliest_tokens() -> None:
    logits, _ = _inputs()
    padded = torch.cat([logits.detach(), torch.full((ROWS, 3), 50.0)], dim=1)
    ids, log_probs = likeliest(padded, 4, WHOLE, temperature=0.5)
    expected = (logits / 0.5).log_softmax(-1).topk(4)
    assert ids.equal(expected.indices)
    torch.testing.assert_close(log_probs, expected.values)


def test_padding_columns_have_no_probability_and_no_gradient() -> None:
    logits, targets = _inputs()
    padded = torch.cat([logits.detach(), torch.full((ROWS, 3), 50.0)], dim=1).requires_grad_()
    log_probs, entropy = token_log_probs(padded, targets, WHOLE, entropy=True)
    alone = token_log_probs(logits, targets, WHOLE, entropy=True)
    assert entropy is not None
    assert alone[1] is not None
    torch.testing.assert_close(log_probs, alone[0])
    torch.testing.assert_close(entropy, alone[1])
    [grad] = torch.autograd.grad((log_probs + entropy).sum(), padded)
    assert torch.count_nonzero(grad[:, VOCAB:]) == 0


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]], requires_grad=True)
    log_probs, entropy = token_log_probs(
        logits, torch.tensor([1, 2]), VocabSlice(0, 3, None), temperature=0.1, entropy=True
    )
    assert log_probs.tolist() == pytest.approx([-2e5, -torch.tensor(3.0).log().item()])
    assert entropy is not None
    [grad] = torch.autograd.grad((log_probs + entropy).sum(), logits)
    assert torch.isfinite(grad).all()


def test_bfloat16_logits_are_reduced_in_float32() -> None:
    logits, targets = _inputs()
    low = logits.detach().bfloat16().requires_grad_()
    log_probs, _ = token_log_probs(low, targets, WHOLE)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs, token_log_probs(low.float(), targets, WHOLE)[0])
    [grad] = torch.autograd.grad(log_probs.sum(), low)
    assert grad.dtype == torch.bfloat16


def test_no_targets_give_no_log_probs() -> None:
    logits = torch.empty(0, VOCAB, requires_grad=True)
    log_probs, entropy = token_log_probs(logits, torch.empty(0, dtype=torch.int64), WHOLE, entropy=True)
    assert entropy is not None
    (log_probs.sum() + entropy.sum()).backward()
    assert logits.grad is not None
    assert logits.grad.shape == (0, VOCAB)


def test_temperature_zero_is_refused() -> None:
    logits, targets = _inputs()
    with pytest.raises(ValueError, match="temperature above 0, got 0"):
        token_log_probs(logits, targets, WHOLE, temperature=0.0)
