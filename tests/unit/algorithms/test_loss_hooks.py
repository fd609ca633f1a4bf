"""Contracts of the functions that a user puts into the loss and the advantages, each loaded from a file and called."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from relax_engine.algorithms import AlgorithmSettings, LossInputs, get, make_policy_loss, training_columns
from relax_engine.algorithms.custom_advantage import with_custom_advantage
from relax_engine.algorithms.custom_loss import CustomLoss
from relax_engine.utils.hooks import load_function

OFFSETS = torch.tensor([0, 3, 3, 5])
TOTALS = torch.tensor([7, 2, 9])
ARGS = SimpleNamespace(cap=1.5)


def columns(settings: AlgorithmSettings) -> dict[str, torch.Tensor]:
    result = {
        "log_probs": torch.tensor([-1.0, -2.0, -1.5, -0.5, -0.7]),
        "rollout_log_probs": torch.tensor([-1.0, -3.0, -1.5, -0.1, -0.7]),
        "loss_masks": torch.tensor([1, 1, 0, 1, 1]),
        "rewards": torch.tensor([1.0, 0.5, -1.0]),
    }
    return result | training_columns(get("grpo"), settings, result, OFFSETS)


def write(directory: Path, code: str) -> str:
    file = directory / "user_functions.py"
    file.write_text(code)
    return str(file)


def step(settings: AlgorithmSettings, rows: list[slice]) -> tuple[float, list[float], dict[str, float]]:
    """Loss, gradient and metrics of one step over micro-batches of the given rows."""
    data = columns(settings)
    loss_fn = make_policy_loss(settings, args=ARGS)
    leaf = torch.tensor([-0.9, -2.1, -1.4, -0.6, -0.7], requires_grad=True)
    metrics: dict[str, float] = {}
    for part in rows:
        bounds = OFFSETS[part.start : part.stop + 1]
        span = slice(int(bounds[0]), int(bounds[-1]))
        inputs = LossInputs({name: data[name][span] for name in loss_fn.columns}, bounds - bounds[0], TOTALS[part])
        loss, found = loss_fn(leaf[span], None, inputs)
        loss.backward()
        for name, value in found.items():
            metrics[name] = metrics.get(name, 0.0) + float(value)
    assert leaf.grad is not None
    return metrics["loss"], leaf.grad.tolist(), metrics


WHOLE, SPLIT = [slice(0, 3)], [slice(0, 1), slice(1, 3)]

TIS = """
import torch

def capped(args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths, **kwargs):
    assert [len(row) for row in train_log_probs] == [len(row) for row in loss_masks] == response_lengths
    assert len(total_lengths) == len(response_lengths)
    weights = torch.cat([(t - r).exp() for t, r in zip(train_log_probs, rollout_log_probs)]).clamp(max=args.cap)
    masks = [mask * (total < 9) for mask, total in zip(loss_masks, total_lengths)]
    return pg_loss * weights, masks, {"my_weight": weights}

def bad(args, *, pg_loss, **kwargs):
    return pg_loss

def short(args, *, pg_loss, loss_masks, **kwargs):
    return pg_loss[1:], loss_masks, {}
"""


def test_custom_tis(tmp_path: Path) -> None:
    path = write(tmp_path, TIS)
    settings = AlgorithmSettings(custom_tis_function_path=f"{path}:capped")
    loss, gradient, metrics = step(settings, WHOLE)
    _, plain, _ = step(AlgorithmSettings(), WHOLE)
    # The second token's ratio e is capped to 1.5; the last sample (9 tokens in all) is masked by the function.
    assert gradient == pytest.approx([plain[0], 1.5 * plain[1], 0.0, 0.0, 0.0])
    assert metrics["my_weight"] == pytest.approx((1 + 1.5) / 6 + (torch.tensor(-0.4).exp().item() + 1) / 6)
    assert step(settings, SPLIT)[:2] == (pytest.approx(loss), pytest.approx(gradient))


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("bad", TypeError, r"bad must return \(pg_loss, masks, metrics\)"),
        ("short", ValueError, r"short returned pg_loss of shape \(4,\), the samples have 5 response tokens"),
    ],
)
def test_a_custom_tis_that_breaks_its_contract(tmp_path: Path, name: str, error: type[Exception], message: str) -> None:
    settings = AlgorithmSettings(custom_tis_function_path=f"{write(tmp_path, TIS)}:{name}")
    with pytest.raises(error, match=message):
        step(settings, WHOLE)


REDUCER = """
def sample_means(total_lengths, response_lengths, masks, calculate_per_token_loss):
    def reduce(per_token):
        parts = zip(per_token.split(response_lengths), masks)
        if calculate_per_token_loss:
            return sum((part * mask).sum() for part, mask in parts)
        return sum((part * mask).sum() / mask.sum().clamp(min=1) for part, mask in parts)
    return reduce

def by_constant(total_lengths, response_lengths, masks, calculate_per_token_loss):
    return lambda per_token: sum((p * m).sum() / 100 for p, m in zip(per_token.split(response_lengths), masks))
"""


@pytest.mark.parametrize("flags", [{}, {"calculate_per_token_loss": True}])
@pytest.mark.parametrize("rows", [WHOLE, SPLIT])
def test_custom_reducer(tmp_path: Path, flags: dict[str, Any], rows: list[slice]) -> None:
    """The default reductions written as a user's reducer give the same step, however it is split."""
    path = f"{write(tmp_path, REDUCER)}:sample_means"
    loss, gradient, _ = step(AlgorithmSettings(custom_pg_loss_reducer_function_path=path, **flags), rows)
    expected_loss, expected_gradient, _ = step(AlgorithmSettings(**flags), WHOLE)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert gradient == pytest.approx(expected_gradient, rel=1e-5)


def test_custom_reducer_of_dr_grpo(tmp_path: Path) -> None:
    path = f"{write(tmp_path, REDUCER)}:by_constant"
    loss, gradient, _ = step(AlgorithmSettings(custom_pg_loss_reducer_function_path=path), SPLIT)
    expected_loss, expected_gradient, _ = step(AlgorithmSettings(loss_constant_length=100), WHOLE)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert gradient == pytest.approx(expected_gradient, rel=1e-5)


ADVANTAGE = """
def halves(args, rollout_data):
    rows = zip(rollout_data["rewards"], rollout_data["loss_masks"], rollout_data["log_probs"])
    assert rollout_data["response_lengths"] == [3, 0, 2]
    rollout_data["advantages"] = [reward * mask * args.cap + 0 * lp for reward, mask, lp in rows]

def nothing(args, rollout_data):
    pass

def short(args, rollout_data):
    rollout_data["advantages"] = [row[1:] for row in rollout_data["loss_masks"]]
"""


def test_custom_advantage(tmp_path: Path) -> None:
    path = write(tmp_path, ADVANTAGE)
    data = columns(AlgorithmSettings())
    given = {name: data[name] for name in ("log_probs", "loss_masks", "rewards")}

    def advantages(name: str, **flags: Any) -> Any:
        spec = with_custom_advantage(get("grpo"), load_function(f"{path}:{name}"), ARGS, given)
        return training_columns(spec, AlgorithmSettings(**flags), given, OFFSETS)

    result = advantages("halves")
    assert result["advantages"].tolist() == [1.5, 1.5, 0.0, -1.5, -1.5]
    assert result["returns"].equal(result["advantages"])
    assert result["loss_weights"].equal(data["loss_weights"])
    # Whitening follows, as for any algorithm.
    assert float(advantages("halves", normalize_advantages=True)["advantages"].sum()) == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(ValueError, match="put no 'advantages'"):
        advantages("nothing")
    with pytest.raises(ValueError, match=r"advantages have lengths \[2, 0, 1\], the responses \[3, 0, 2\]"):
        advantages("short")


LOSS = """
def reinforce(args, batch, log_probs, sum_of_sample_mean):
    assert batch["response_lengths"] == [3, 0, 2] and batch["total_lengths"] == [7, 2, 9]
    loss = sum_of_sample_mean(-args.cap * batch["advantages"] * log_probs)
    return loss, {"loss": loss, "mean_log_prob": sum_of_sample_mean(log_probs)}

def bad(args, batch, log_probs, sum_of_sample_mean):
    return log_probs.sum()
"""


def test_custom_loss(tmp_path: Path) -> None:
    path, settings = write(tmp_path, LOSS), AlgorithmSettings()
    data = columns(settings)
    inputs = LossInputs(data, OFFSETS, TOTALS)
    custom = CustomLoss(make_policy_loss(settings), load_function(f"{path}:reinforce"), ARGS)
    assert custom.columns == make_policy_loss(settings).columns
    leaf = data["log_probs"].clone().requires_grad_()
    loss, metrics = custom(leaf, None, inputs)
    loss.backward()
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, -1.5 * data["loss_weights"] * data["advantages"])
    # The masked third token is in no sum: two samples of two tokens, and an empty one.
    assert float(metrics["mean_log_prob"]) == pytest.approx(((-1.0 - 2.0) / 2 + (-0.5 - 0.7) / 2) / 3)
    assert float(metrics["loss_tokens/sum"]) == 4
    with pytest.raises(TypeError, match=r"bad must return \(loss, metrics\)"):
        CustomLoss(make_policy_loss(settings), load_function(f"{path}:bad"), ARGS)(leaf, None, inputs)
