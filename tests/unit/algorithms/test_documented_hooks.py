"""The functions that `docs/hooks.md` shows for rewards, filters, advantages and losses do what it says."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from relax_engine.algorithms import AlgorithmSettings, LossInputs, get, make_policy_loss, training_columns
from relax_engine.algorithms.custom_advantage import with_custom_advantage
from relax_engine.algorithms.custom_loss import CustomLoss
from relax_engine.rollout.filters import apply_filter
from relax_engine.rollout.reward_stage import RewardStage
from relax_engine.types import Sample
from relax_engine.utils.hooks import load_function

DOCUMENT = Path(__file__).parents[3] / "docs" / "hooks.md"
ARGS = SimpleNamespace(reward_key=None)
OFFSETS = torch.tensor([0, 3, 5])


@pytest.fixture
def documented(tmp_path: Path) -> Any:
    """Loads a function of the document by its name, from a file of its own."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S)

    def load(name: str) -> Any:
        (code,) = [block for block in blocks if f"def {name}(" in block]
        file = tmp_path / f"{name}.py"
        file.write_text(f"import torch\n\n{code}")
        return load_function(f"{file}:{name}")

    return load


def group(*rewards: float) -> list[Sample]:
    return [Sample(index=index, reward=reward) for index, reward in enumerate(rewards)]


def columns(settings: AlgorithmSettings, **changes: Any) -> dict[str, torch.Tensor]:
    given = {
        "rewards": torch.tensor([1.0, -1.0]),
        "loss_masks": torch.tensor([1, 1, 0, 1, 1]),
        "rollout_log_probs": torch.tensor([-1.0, -3.0, -1.0, -0.5, -1.0]),
        "log_probs": torch.tensor([-1.0, -1.0, -1.0, -0.5, -1.0]),
    }
    return given | training_columns(get("grpo"), settings, given, OFFSETS) | changes


def test_rewards_and_filters(documented: Any) -> None:
    stage = RewardStage(get("grpo"), post_process=documented("ranks"), args=ARGS)
    assert stage(group(3.0, 1.0))[1].tolist() == [0.5, 0.0]
    judge = documented("hard_but_possible")
    decisions = [apply_filter(judge, ARGS, group(*rewards)) for rewards in ((1.0, 0.0), (1.0, 1.0), (0.0, 0.0))]
    assert [(each.keep, each.reason) for each in decisions] == [(True, None), (False, "right_2"), (False, "right_0")]


def test_advantages(documented: Any) -> None:
    given = columns(AlgorithmSettings())
    spec = with_custom_advantage(get("grpo"), documented("last_token_only"), ARGS, ["rewards", "loss_masks"])
    made = training_columns(spec, AlgorithmSettings(), given, OFFSETS)
    assert made["advantages"].tolist() == [0.0, 1.0, 0.0, 0.0, -1.0]


def test_losses(documented: Any) -> None:
    settings = AlgorithmSettings()
    data = columns(settings)
    inputs = LossInputs(data, OFFSETS, torch.tensor([4, 3]))
    custom = CustomLoss(make_policy_loss(settings), documented("reinforce"), ARGS)
    loss, metrics = custom(data["log_probs"], None, inputs)
    weights, kept = data["loss_weights"], data["loss_masks"] != 0
    assert float(loss) == pytest.approx(-float((weights * data["advantages"] * data["log_probs"])[kept].sum()))
    assert set(metrics) == {"loss", "log_prob", "loss_tokens/sum"}


def test_corrections_and_reductions(documented: Any) -> None:
    token_mask, reducer = documented("token_mask"), documented("get_pg_loss_reducer")
    data = columns(AlgorithmSettings(custom_pg_loss_reducer_function_path="unused"))
    inputs = LossInputs(data, OFFSETS, torch.tensor([4, 3]))

    def gradient(**hooks: Any) -> list[float]:
        loss_fn = make_policy_loss(AlgorithmSettings())
        loss_fn = dataclasses.replace(loss_fn, hooks=dataclasses.replace(loss_fn.hooks, args=ARGS, **hooks))
        leaf = data["log_probs"].clone().requires_grad_()
        loss_fn(leaf, None, inputs)[0].backward()
        assert leaf.grad is not None
        return leaf.grad.tolist()

    # The second token is e^2 = 7.4 times as likely for the trainer.
    assert gradient(tis=token_mask) == pytest.approx([-0.25, 0.0, 0.0, 0.25, 0.25])
    assert gradient(reducer=reducer) == pytest.approx([-0.0005, -0.0005, 0.0, 0.0005, 0.0005])
