"""Divergences against enumeration over a small vocabulary, their bounds, and the two modes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from relax_engine.algorithms import AlgorithmSettings, LossInputs, get, make_policy_loss, training_columns
from relax_engine.algorithms.distillation import (
    DistillationSettings,
    distillation_loss,
    distilled_advantages,
    sampled_divergence,
    top_k_divergence,
)

VOCAB = 6


def distributions(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Log-probs of student and teacher over the whole vocabulary, f64 `[4, VOCAB]`."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(2, 4, VOCAB, generator=generator, dtype=torch.float64)
    student, teacher = logits.log_softmax(-1)
    return student, teacher


def expected_kl(p: Tensor, q: Tensor) -> Tensor:
    return torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1)


@pytest.mark.parametrize("kind", ["reverse_kl", "low_var_kl"])
def test_the_sampled_estimate_has_the_divergence_as_its_mean(kind: str) -> None:
    student, teacher = distributions()
    mean = (student.exp() * sampled_divergence(student, teacher, kind)).sum(-1)
    torch.testing.assert_close(mean, expected_kl(student, teacher))
    if kind == "low_var_kl":
        assert (sampled_divergence(student, teacher, kind) >= 0).all()


@pytest.mark.parametrize("norm_mode", ["norm", "trunc"])
def test_over_the_whole_vocabulary_the_sum_is_the_divergence(norm_mode: str) -> None:
    student, teacher = distributions()

    def divergence(kind: str, **options: Any) -> Tensor:
        return top_k_divergence(student, teacher, kind, norm_mode=norm_mode, **options)

    torch.testing.assert_close(divergence("reverse_kl"), expected_kl(student, teacher))
    torch.testing.assert_close(divergence("forward_kl"), expected_kl(teacher, student))
    for alpha in (0.1, 0.5):
        mixture = ((1 - alpha) * student.exp() + alpha * teacher.exp()).log()
        expected = alpha * expected_kl(teacher, mixture) + (1 - alpha) * expected_kl(student, mixture)
        torch.testing.assert_close(divergence("jsd", alpha=alpha), expected)


def test_the_tail_is_one_more_token() -> None:
    student, teacher = distributions()
    merged = [
        torch.cat([values[:, :3], values[:, 3:].logsumexp(-1, keepdim=True)], -1) for values in (student, teacher)
    ]
    for kind in ("reverse_kl", "forward_kl", "jsd"):
        actual = top_k_divergence(student[:, :3], teacher[:, :3], kind, norm_mode="tail")
        torch.testing.assert_close(actual, top_k_divergence(*merged, kind, norm_mode="trunc"))
        # Merging tokens never adds divergence.
        assert (actual <= top_k_divergence(student, teacher, kind, norm_mode="norm") + 1e-12).all()


def test_a_full_tail_keeps_gradients_finite() -> None:
    student = torch.tensor([[0.5, 0.5]]).log().requires_grad_()
    top_k_divergence(student, torch.tensor([[0.9, 0.1]]).log(), "jsd").sum().backward()
    assert student.grad is not None
    assert student.grad.isfinite().all()


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.8])
def test_jsd_is_bounded_by_the_entropy_of_the_mixture(alpha: float) -> None:
    bound = -alpha * math.log(alpha) - (1 - alpha) * math.log(1 - alpha)
    for seed in range(5):
        student, teacher = distributions(seed)
        divergence = top_k_divergence(student, teacher, "jsd", norm_mode="norm", alpha=alpha)
        assert ((divergence >= 0) & (divergence <= bound)).all()
    apart = torch.tensor([[0.0, -60.0]]), torch.tensor([[-60.0, 0.0]])
    assert top_k_divergence(*apart, "jsd", norm_mode="norm", alpha=alpha).item() == pytest.approx(bound)
    same = torch.full((1, 2), math.log(0.5))
    assert top_k_divergence(same, same, "jsd", norm_mode="norm", alpha=alpha).item() == pytest.approx(0.0, abs=1e-7)


def test_kinds_that_do_not_fit_are_refused() -> None:
    student, teacher = distributions()
    with pytest.raises(ValueError, match="--opd-kl-type jsd needs more than the sampled token"):
        sampled_divergence(student, teacher, "jsd")
    with pytest.raises(ValueError, match="--opd-kl-type low_var_kl is an estimate from the sampled token"):
        top_k_divergence(student, teacher, "low_var_kl")
    with pytest.raises(ValueError, match="--opd-norm-mode 'sum'"):
        top_k_divergence(student, teacher, "jsd", norm_mode="sum")
    with pytest.raises(ValueError, match=r"--opd-jsd-alpha 1\.0"):
        top_k_divergence(student, teacher, "jsd", alpha=1.0)


STUDENT, TEACHER = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-2.0, -1.0, -9.0])
MASK = torch.tensor([True, True, False])


def test_the_advantage_mode_takes_the_divergence_off() -> None:
    advantages = torch.tensor([0.5, 0.5, 0.0])

    def distilled(**flags: Any) -> list[float]:
        settings = DistillationSettings(use_opd=True, **flags)
        return distilled_advantages(advantages, STUDENT, TEACHER, MASK, settings).tolist()

    assert distilled() == [-0.5, 1.5, 0.0]
    assert distilled(opd_kl_coef=0.1, opd_only_reward=True) == pytest.approx([-0.1, 0.1, 0.0])
    assert distilled(opd_per_token_clip=0.25) == [0.25, 1.5, 0.0]
    assert distilled(opd_log_prob_min_clamp=-1.5) == [0.0, 1.0, 0.0]


def test_the_weighted_loss_has_the_gradient_of_the_divergence() -> None:
    """Summed over all tokens under the student's probabilities, as sampling does on average."""
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    teacher = distributions()[1][0]
    exact, estimate = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    expected_kl(exact.log_softmax(-1), teacher).backward()
    student = estimate.log_softmax(-1)
    settings = DistillationSettings(use_opd=True, opd_loss_coef=1.0, opd_is_clip=5.0)
    probabilities = student.detach().exp()
    (probabilities * distillation_loss(student, student.detach(), teacher, settings)).sum().backward()
    torch.testing.assert_close(estimate.grad, exact.grad)


def test_chosen_tokens_are_weighted_by_a_constant() -> None:
    candidates = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    settings = DistillationSettings(
        use_opd=True, opd_loss_coef=1.0, opd_log_prob_top_k=2, opd_kl_type="forward_kl", opd_is_clip=1.5
    )
    current = torch.tensor([-1.0], requires_grad=True)
    teacher = torch.tensor([[-0.5, -2.0]])
    loss = distillation_loss(current, torch.tensor([-2.0]), teacher, settings, candidates=candidates)
    assert loss.item() == pytest.approx(1.5 * top_k_divergence(candidates, teacher, "forward_kl").item())
    loss.sum().backward()
    assert current.grad is None
    assert candidates.grad is not None


def test_columns_and_modes_follow_the_flags() -> None:
    assert DistillationSettings().columns == ()
    advantage = DistillationSettings(use_opd=True)
    assert (advantage.in_advantage, advantage.in_loss, advantage.columns) == (True, False, ("teacher_log_probs",))
    loss = DistillationSettings(use_opd=True, opd_loss_coef=0.5, opd_log_prob_top_k=4)
    assert (loss.in_advantage, loss.in_loss) == (False, True)
    assert loss.columns == ("teacher_log_probs", "teacher_topk_ids", "teacher_topk_log_probs")


OFFSETS = torch.tensor([0, 2, 3])


def batch_columns(distillation: DistillationSettings, **settings: Any) -> dict[str, Tensor]:
    columns = {
        "rewards": torch.tensor([1.0, -1.0]),
        "loss_masks": torch.ones(3),
        "rollout_log_probs": STUDENT,
        "log_probs": STUDENT,
        "teacher_log_probs": TEACHER,
        "teacher_topk_ids": torch.zeros(3, 2, dtype=torch.int32),
        "teacher_topk_log_probs": torch.tensor([[-0.5, -2.0], [-0.2, -3.0], [-1.0, -1.0]]),
    }
    flags = AlgorithmSettings(**settings)
    return columns | training_columns(get("grpo"), flags, columns, OFFSETS, distillation=distillation)


def test_the_batch_stage_takes_the_sampled_divergence_off_before_whitening() -> None:
    settings = DistillationSettings(use_opd=True, opd_kl_coef=0.5)
    expected = torch.tensor([1.0, 1.0, -1.0]) - 0.5 * (STUDENT - TEACHER)
    assert batch_columns(settings)["advantages"].tolist() == expected.tolist()
    whitened = batch_columns(settings, normalize_advantages=True)["advantages"]
    torch.testing.assert_close(whitened, (expected - expected.mean()) / expected.std())


def test_chosen_tokens_take_it_off_in_the_loss() -> None:
    settings = DistillationSettings(use_opd=True, opd_log_prob_top_k=2, opd_kl_type="forward_kl")
    columns = batch_columns(settings)
    assert columns["advantages"].tolist() == [1.0, 1.0, -1.0]
    candidates = torch.full((3, 2), -1.0, requires_grad=True)
    loss_fn = make_policy_loss(AlgorithmSettings(calculate_per_token_loss=True), distillation=settings)
    assert loss_fn.candidates == "teacher_topk_ids"
    leaf = STUDENT.clone().requires_grad_()
    loss, _ = loss_fn(leaf, None, LossInputs(columns, OFFSETS, candidates=candidates))
    loss.backward()
    divergence = top_k_divergence(candidates.detach(), columns["teacher_topk_log_probs"], "forward_kl")
    advantages = torch.tensor([1.0, 1.0, -1.0]) - divergence
    torch.testing.assert_close(leaf.grad, -columns["loss_weights"] * advantages)
    assert candidates.grad is None


def test_the_loss_mode_adds_the_term_and_leaves_advantages_alone() -> None:
    settings = DistillationSettings(use_opd=True, opd_loss_coef=0.25, opd_kl_type="low_var_kl")
    columns = batch_columns(settings)
    assert columns["advantages"].tolist() == [1.0, 1.0, -1.0]
    inputs = LossInputs(columns, OFFSETS)
    loss, metrics = make_policy_loss(AlgorithmSettings(), distillation=settings)(STUDENT, None, inputs)
    plain, _ = make_policy_loss(AlgorithmSettings())(STUDENT, None, inputs)
    term = (columns["loss_weights"] * sampled_divergence(STUDENT, TEACHER, "low_var_kl")).sum()
    assert float(loss - plain) == pytest.approx(0.25 * float(term), rel=1e-5)
    assert float(metrics["opd_loss"]) == pytest.approx(float(term), rel=1e-5)
