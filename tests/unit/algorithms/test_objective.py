"""The whole loss: which log-probs are old, masks, terms, metrics, and independence of the split."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from relax_engine.algorithms import AlgorithmSettings, LossInputs, get, make_policy_loss, training_columns

LENGTHS = torch.tensor([100, 5, 0, 5, 5])
OFFSETS = torch.cat([torch.zeros(1, dtype=torch.int64), LENGTHS.cumsum(0)])
TOKENS = int(OFFSETS[-1])


def batch(settings: AlgorithmSettings, seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """Current log-probs `[R]` and all columns of a batch with masked tokens and an empty row."""
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(TOKENS, generator=generator) * 3
    noise = [0.3 * torch.randn(TOKENS, generator=generator) for _ in range(3)]
    columns: dict[str, Tensor] = {
        "log_probs": old,
        "ref_log_probs": old + noise[0],
        "rollout_log_probs": old + noise[1],
        "loss_masks": (torch.arange(TOKENS) % 4 != 1).to(torch.uint8),
        "rewards": torch.tensor([1.0, -1.0, 0.5, 0.7, -0.2]),
    }
    columns |= training_columns(get("grpo"), settings, columns, OFFSETS)
    return old + noise[2], columns


def rows_of(columns: dict[str, Tensor], rows: slice) -> LossInputs:
    offsets = OFFSETS[rows.start : rows.stop + 1]
    per_token = {k: v[offsets[0] : offsets[-1]] for k, v in columns.items() if v.numel() == TOKENS}
    return LossInputs(per_token, offsets - offsets[0])


EVERYTHING: dict[str, Any] = {
    "use_kl_loss": True,
    "kl_loss_coef": 0.1,
    "kl_loss_type": "low_var_kl",
    "use_unbiased_kl": True,
    "entropy_coef": 0.01,
    "use_tis": True,
    "eps_clip_c": 3.0,
}


@pytest.mark.parametrize(
    "reduction",
    [{}, {"calculate_per_token_loss": True}, {"loss_constant_length": 128}],
    ids=["sample_mean", "token_mean", "constant"],
)
@pytest.mark.parametrize("splits", [[5], [1, 4], [1, 1, 3], [1, 1, 1, 1, 1], [2, 3]])
def test_loss_gradient_and_metrics_do_not_depend_on_the_split(reduction: dict[str, Any], splits: list[int]) -> None:
    settings = AlgorithmSettings(**EVERYTHING, **reduction)
    current, columns = batch(settings)
    loss_fn = make_policy_loss(settings)

    def step(splits: list[int]) -> tuple[Tensor, Tensor, dict[str, float]]:
        leaf = current.double().requires_grad_()
        total, start = torch.zeros((), dtype=torch.float64), 0
        summed: dict[str, float] = {}
        for size in splits:
            inputs = rows_of(columns, slice(start, start + size))
            tokens = slice(int(OFFSETS[start]), int(OFFSETS[start + size]))
            loss, metrics = loss_fn(leaf[tokens], -leaf[tokens], inputs)
            total, start = total + loss, start + size
            for name, value in metrics.items():
                best = max(summed.get(name, 0.0), float(value))
                summed[name] = best if name.endswith("/max") else summed.get(name, 0.0) + float(value)
        total.backward()
        assert leaf.grad is not None
        return total.detach(), leaf.grad, summed

    loss, gradient, metrics = step([5])
    split_loss, split_gradient, split_metrics = step(splits)
    torch.testing.assert_close(split_loss, loss, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(split_gradient, gradient, rtol=1e-12, atol=1e-12)
    assert split_metrics == pytest.approx(metrics, rel=1e-6, abs=1e-9)
    assert gradient.any()


def test_on_policy_gradient_is_the_policy_gradient() -> None:
    settings = AlgorithmSettings(calculate_per_token_loss=True)
    _, columns = batch(settings)
    leaf = columns["log_probs"].clone().requires_grad_()
    loss, metrics = make_policy_loss(settings)(leaf, None, rows_of(columns, slice(0, 5)))
    loss.backward()
    # at ratio 1: d loss / d log_prob = -w * A, whatever the clip range
    torch.testing.assert_close(leaf.grad, -columns["loss_weights"] * columns["advantages"])
    assert float(metrics["ratio/max"]) == 1.0
    assert float(metrics["pg_clipfrac"]) == 0.0
    assert float(metrics["ppo_kl"]) == 0.0


def test_true_on_policy_equals_recomputed_old_log_probs_and_needs_no_column() -> None:
    settings = AlgorithmSettings(use_tis=True)
    _, columns = batch(settings)
    recomputed = make_policy_loss(settings)
    on_policy = make_policy_loss(settings, true_on_policy=True)
    assert "log_probs" in recomputed.columns
    assert "log_probs" not in on_policy.columns
    gradients = []
    for loss_fn in (recomputed, on_policy):
        leaf = columns["log_probs"].clone().requires_grad_()
        inputs = rows_of({name: columns[name] for name in loss_fn.columns}, slice(0, 5))
        loss_fn(leaf, None, inputs)[0].backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_rollout_log_probs_as_old_policy() -> None:
    settings = AlgorithmSettings(use_rollout_logprobs=True)
    current, columns = batch(settings)
    loss_fn = make_policy_loss(settings)
    assert "log_probs" not in loss_fn.columns
    _, metrics = loss_fn(current, None, rows_of(columns, slice(0, 5)))
    expected = columns["loss_weights"] * (columns["rollout_log_probs"] - current)
    assert float(metrics["ppo_kl"]) == pytest.approx(float(expected.sum()), rel=1e-5)
    assert float(metrics["train_rollout_logprob_abs_diff"]) == 0.0


def test_tis_weight_depends_on_old_and_rollout_log_probs_only() -> None:
    settings = AlgorithmSettings(use_tis=True)
    current, columns = batch(settings)
    loss_fn = make_policy_loss(settings)
    inputs = rows_of(columns, slice(0, 5))
    weights = [float(loss_fn(current + shift, None, inputs)[1]["tis"]) for shift in (0.0, 0.5)]
    assert weights[0] == weights[1]
    plain = make_policy_loss(AlgorithmSettings())(current, None, inputs)[1]["pg_loss"]
    assert float(plain) != pytest.approx(float(loss_fn(current, None, inputs)[1]["pg_loss"]))


def test_masked_garbage_changes_neither_loss_nor_gradient() -> None:
    settings = AlgorithmSettings(**EVERYTHING)
    current, columns = batch(settings)
    masked = columns["loss_masks"] == 0
    dirty = {name: value for name, value in columns.items() if value.numel() == TOKENS}
    for name in ("log_probs", "rollout_log_probs", "ref_log_probs", "advantages"):
        dirty[name] = dirty[name].masked_fill(masked, -math.inf)
    results = []
    for cols, lp in ((columns, current), (dirty, current.masked_fill(masked, -math.inf))):
        leaf = lp.clone().requires_grad_()
        entropy = torch.where(masked, torch.nan if cols is dirty else 0.5, 0.5)
        loss, metrics = make_policy_loss(settings)(leaf, entropy, rows_of(cols, slice(0, 5)))
        loss.backward()
        assert leaf.grad is not None
        results.append((loss.detach(), leaf.grad, metrics))
    torch.testing.assert_close(results[1][0], results[0][0])
    torch.testing.assert_close(results[1][1], results[0][1])
    assert not results[1][1][masked].any()
    assert {k: float(v) for k, v in results[1][2].items()} == pytest.approx(
        {k: float(v) for k, v in results[0][2].items()}
    )


@pytest.mark.parametrize("rows", [slice(2, 3), slice(0, 0)], ids=["empty row", "no row"])
def test_no_tokens_still_gives_a_loss_with_gradient(rows: slice) -> None:
    settings = AlgorithmSettings(**EVERYTHING)
    _, columns = batch(settings)
    leaf = torch.zeros(0, requires_grad=True)
    loss, metrics = make_policy_loss(settings)(leaf, leaf, rows_of(columns, rows))
    loss.backward()
    assert loss == 0.0
    assert all(value == 0.0 for value in metrics.values())


def test_terms_add_up_with_their_signs() -> None:
    settings = AlgorithmSettings(use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="k2", entropy_coef=0.01)
    current, columns = batch(settings)
    loss_fn = make_policy_loss(settings)
    assert loss_fn.needs_entropy
    assert "ref_log_probs" in loss_fn.columns
    loss, metrics = loss_fn(current, torch.full((TOKENS,), 2.0), rows_of(columns, slice(0, 5)))
    weights = columns["loss_weights"]
    kl = float((weights * (current - columns["ref_log_probs"]) ** 2 / 2).sum())
    assert float(metrics["kl_loss"]) == pytest.approx(kl, rel=1e-5)
    assert float(metrics["entropy_loss"]) == pytest.approx(2.0 * float(weights.sum()), rel=1e-5)
    expected = float(metrics["pg_loss"]) + 0.1 * kl - 0.01 * float(metrics["entropy_loss"])
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(metrics["loss"]) == float(loss)


def test_zero_kl_coefficient_needs_no_reference() -> None:
    assert "ref_log_probs" not in make_policy_loss(AlgorithmSettings(use_kl_loss=True)).columns
    assert "ref_log_probs" not in make_policy_loss(AlgorithmSettings(kl_loss_coef=0.1)).columns


def test_mismatch_metrics_count_unmasked_tokens() -> None:
    settings = AlgorithmSettings(calculate_per_token_loss=True)
    current, columns = batch(settings)
    _, metrics = make_policy_loss(settings)(current, None, rows_of(columns, slice(0, 5)))
    unmasked = columns["loss_masks"] != 0
    difference = (columns["log_probs"] - columns["rollout_log_probs"]).abs()[unmasked]
    assert float(metrics["train_rollout_logprob_abs_diff"]) == pytest.approx(float(difference.mean()), rel=1e-5)
    assert float(metrics["train_rollout_logprob_abs_diff/max"]) == float(difference.max())
    assert float(metrics["loss_tokens/sum"]) == int(unmasked.sum())
    assert float(metrics["loss_weight"]) == pytest.approx(1.0, rel=1e-5)


def test_extreme_ratios_stay_finite() -> None:
    settings = AlgorithmSettings()
    _, columns = batch(settings)
    leaf = (columns["log_probs"] + 1e4).requires_grad_()
    loss, metrics = make_policy_loss(settings)(leaf, None, rows_of(columns, slice(0, 5)))
    loss.backward()
    assert loss.isfinite()
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()
    assert float(metrics["ratio/max"]) == pytest.approx(math.exp(20), rel=1e-4)


def test_contradictions_and_omissions_are_errors() -> None:
    with pytest.raises(ValueError, match=r"--use-tis .* --use-rollout-logprobs"):
        make_policy_loss(AlgorithmSettings(use_tis=True, use_rollout_logprobs=True))
    settings = AlgorithmSettings(entropy_coef=0.5)
    current, columns = batch(settings)
    with pytest.raises(ValueError, match="--entropy-coef"):
        make_policy_loss(settings)(current, None, rows_of(columns, slice(0, 5)))


def test_decoupled_ppo_is_ppo_where_proximal_and_behaviour_policy_agree() -> None:
    current, columns = batch(AlgorithmSettings())
    columns["rollout_log_probs"] = columns["log_probs"]
    inputs = rows_of(columns, slice(0, 5))
    results = []
    for settings in (AlgorithmSettings(), AlgorithmSettings(use_decoupled_ppo=True)):
        leaf = current.clone().requires_grad_()
        loss, _ = make_policy_loss(settings)(leaf, None, inputs)
        loss.backward()
        results.append((loss.item(), leaf.grad))
    assert results[0][0] == results[1][0]
    assert results[0][1] is not None
    assert results[1][1] is not None
    assert results[0][1].equal(results[1][1])


def test_decoupled_ppo_clips_around_the_proximal_policy_and_weights_by_proximal_over_behaviour() -> None:
    settings = AlgorithmSettings(use_decoupled_ppo=True, tis_clip=5.0, eps_clip=0.2)
    behaviour, proximal, current = -1.0, -0.5, -0.4  # current / behaviour would be clipped, current / proximal is not
    one = {
        "loss_masks": torch.ones(1),
        "loss_weights": torch.ones(1),
        "advantages": torch.ones(1),
        "rollout_log_probs": torch.tensor([behaviour]),
        "log_probs": torch.tensor([proximal]),
    }
    leaf = torch.tensor([current], requires_grad=True)
    loss, _ = make_policy_loss(settings)(leaf, None, LossInputs(one, torch.tensor([0, 1])))
    loss.backward()
    expected = math.exp(proximal - behaviour) * math.exp(current - proximal)
    assert loss.item() == pytest.approx(-expected)
    assert leaf.grad is not None
    assert float(leaf.grad) == pytest.approx(-expected)


def test_opsm_leaves_bad_distant_sequences_out() -> None:
    settings = AlgorithmSettings(use_opsm=True, opsm_delta=0.2)
    current, columns = batch(settings)
    current = columns["log_probs"].clone()
    current[100:105] -= 1.0  # row 1 (negative advantage)
    current[0:100] -= 1.0  # row 0 (positive)
    leaf = current.requires_grad_()
    loss, metrics = make_policy_loss(settings)(leaf, None, rows_of(columns, slice(0, 5)))
    loss.backward()
    assert leaf.grad is not None
    unmasked = columns["loss_masks"] != 0
    assert not leaf.grad[100:105].any()
    assert leaf.grad[110:115][unmasked[110:115]].all()  # row 4 is bad, but near
    assert leaf.grad[0:100][unmasked[0:100]].all()
    assert float(metrics["opsm_clipfrac"]) == pytest.approx(1 / 5)


def test_batch_normalised_weights_have_mean_one_in_any_split() -> None:
    settings = AlgorithmSettings(use_tis=True, tis_batch_normalize=True, calculate_per_token_loss=True)
    current, columns = batch(settings)
    plain = AlgorithmSettings(use_tis=True, calculate_per_token_loss=True)
    mean = float(columns["tis_mean"][0])
    loss = float(make_policy_loss(settings)(current, None, rows_of(columns, slice(0, 5)))[0])
    expected = float(make_policy_loss(plain)(current, None, rows_of(columns, slice(0, 5)))[0]) / mean
    assert loss == pytest.approx(expected, rel=1e-5)
    splits = ((slice(0, 2), slice(0, 105)), (slice(2, 5), slice(105, 115)))
    parts = [make_policy_loss(settings)(current[span], None, rows_of(columns, rows))[0] for rows, span in splits]
    assert float(sum(parts)) == pytest.approx(loss, rel=1e-5)


def test_the_entropy_can_be_logged_without_a_bonus() -> None:
    settings = AlgorithmSettings(use_rollout_entropy=True)
    current, columns = batch(settings)
    assert not make_policy_loss(AlgorithmSettings()).needs_entropy
    loss_fn, inputs = make_policy_loss(settings), rows_of(columns, slice(0, 5))
    assert loss_fn.needs_entropy
    loss, metrics = loss_fn(current, torch.full((TOKENS,), 2.0), inputs)
    assert float(metrics["entropy_loss"]) == pytest.approx(2.0 * float(columns["loss_weights"].sum()), rel=1e-5)
    assert float(loss) == float(make_policy_loss(AlgorithmSettings())(current, None, inputs)[0])
