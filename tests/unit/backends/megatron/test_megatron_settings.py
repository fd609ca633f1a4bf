"""Settings read from the flat configuration, schedules in closed form, tables of rotations."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from relax_engine.backends.megatron.optimizer import build_scheduler
from relax_engine.backends.megatron.rope import RotaryTable
from relax_engine.backends.megatron.settings import OptimizerSettings, RecomputeSettings, read_settings
from relax_engine.checkpoint.rope import DynamicScaling, RopeSpec, YarnScaling
from relax_engine.config import RunConfig
from relax_engine.config.layout import ParallelLayout


def _flat(**values: Any) -> Any:
    return RunConfig.from_flat(**{"hf_checkpoint": "model", "num_rollout": 20, **values}).flat


def test_settings_come_from_the_flags() -> None:
    settings = read_settings(
        _flat(
            tensor_model_parallel_size=2,
            sequence_parallel=True,
            lr=3e-4,
            min_lr=1e-5,
            lr_decay_style="cosine",
            lr_warmup_iters=4,
            weight_decay=0.05,
            adam_beta2=0.95,
            clip_grad=0.5,
            bf16=True,
            seed=7,
            num_steps_per_rollout=3,
            rollout_batch_size=3,
            recompute_granularity="full",
            recompute_method="uniform",
            recompute_num_layers=1,
        )
    )
    assert settings.layout == ParallelLayout(2, sequence_parallel=True)
    optimizer = settings.optimizer
    assert (optimizer.lr, optimizer.min_lr, optimizer.lr_decay_style) == (3e-4, 1e-5, "cosine")
    assert (optimizer.lr_warmup_iters, optimizer.lr_decay_iters) == (4, 60)
    assert (optimizer.weight_decay, optimizer.adam_beta2, optimizer.clip_grad) == (0.05, 0.95, 0.5)
    assert settings.recompute == RecomputeSettings("full", "uniform", 1)
    assert (settings.dtype, settings.seed, settings.hf_checkpoint) == (torch.bfloat16, 7, "model")


def test_the_actor_decays_over_the_rollouts_that_train_it_and_the_critic_over_all() -> None:
    flat = _flat(num_critic_only_steps=5)
    assert read_settings(flat).optimizer.lr_decay_iters == 15
    assert read_settings(flat, value_head=True).optimizer.lr_decay_iters == 20
    assert read_settings(_flat(num_critic_only_steps=20)).optimizer.lr_decay_iters == 1


def test_an_explicit_layout_wins() -> None:
    assert read_settings(_flat(), layout=ParallelLayout(4)).layout == ParallelLayout(4)


def test_the_layout_comes_from_the_flags() -> None:
    flat = _flat(
        tensor_model_parallel_size=2,
        sequence_parallel=True,
        pipeline_model_parallel_size=4,
        context_parallel_size=3,
        expert_model_parallel_size=6,
        expert_tensor_parallel_size=1,
        num_virtual_stages_per_pipeline_rank=5,
        decoder_first_pipeline_num_layers=5,
        decoder_last_pipeline_num_layers=10,
    )
    assert read_settings(flat).layout == ParallelLayout(2, True, 4, 3, 6, 1, 5, 5, 10)
    assert read_settings(_flat(tensor_model_parallel_size=2)).layout.experts_tensor == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ParallelLayout(0), "at least 1, got 0"),
        (lambda: ParallelLayout(1, sequence_parallel=True), "sequence_parallel needs"),
        (lambda: ParallelLayout(2).data_parallel(3), "3 processes cannot hold replicas of 2"),
        (lambda: ParallelLayout(pipeline=2, context=2).data_parallel(6), "6 processes cannot hold replicas of 4"),
        (lambda: ParallelLayout(expert=4).data_parallel(6), "6 processes cannot hold the experts over 4 ranks"),
        (lambda: ParallelLayout(virtual=2), "num_virtual_stages_per_pipeline_rank=2 needs pipeline"),
        (lambda: ParallelLayout(first_layers=2), "decoder_first_pipeline_num_layers .* need pipeline"),
        (lambda: OptimizerSettings(lr=1e-5, min_lr=1e-4), "min_lr must be between 0 and lr"),
        (
            lambda: OptimizerSettings(lr_decay_style="linear", lr_warmup_iters=5, lr_decay_iters=5),
            r"lr_warmup_iters \(5\) must be below lr_decay_iters \(5\)",
        ),
    ],
)
def test_contradictions_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def _rates(style: Any, steps: int, **options: Any) -> list[float]:
    settings = OptimizerSettings(lr=1.0, min_lr=0.1, lr_decay_style=style, **options)
    optimizer: Any = SimpleNamespace(param_groups=[{"wd_mult": 1.0}])
    scheduler = build_scheduler(optimizer, settings)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step(1)
    return rates


@pytest.mark.parametrize(
    ("style", "after_warmup"),
    [
        ("constant", lambda s: 1.0),
        ("linear", lambda s: 0.1 + 0.9 * (1 - (s - 4) / 6)),
        ("cosine", lambda s: 0.1 + 0.9 * (1 + math.cos(math.pi * (s - 4) / 6)) / 2),
        ("inverse-square-root", lambda s: max(0.1, math.sqrt(4 / s))),
    ],
)
def test_schedules_in_closed_form(style: str, after_warmup: Any) -> None:
    rates = _rates(style, 13, lr_warmup_iters=4, lr_decay_iters=10)
    end = 1.0 if style == "constant" else 0.1
    assert rates == pytest.approx([s / 4 for s in range(4)] + [after_warmup(s) for s in range(4, 11)] + [end] * 2)


def test_without_warmup_the_first_step_has_the_full_rate() -> None:
    assert _rates("cosine", 1, lr_decay_iters=10) == [1.0]
    assert _rates("constant", 3) == [1.0] * 3


def test_the_table_grows_and_keeps_its_values() -> None:
    table = RotaryTable(RopeSpec(1e4), 8, torch.float32, torch.device("cpu"))
    short, long = table.upto(3), table.upto(100)
    assert (long.cos.shape, long.sin.shape) == ((100, 1, 8), (100, 1, 4))
    assert torch.equal(short.cos, long.cos[:3])
    assert torch.equal(short.sin, long.sin[:3])


@pytest.mark.parametrize("adjacent", [False, True])
def test_pairs_are_turned_by_their_angle_and_other_dimensions_stay(adjacent: bool) -> None:
    rope = RopeSpec(1e4, YarnScaling(1.0, 64, attention_factor=1.5), fraction=0.5, adjacent=adjacent)
    table = RotaryTable(rope, 8, torch.float64, torch.device("cpu")).upto(6)
    x = torch.randn(6, 3, 8, dtype=torch.float64, requires_grad=True)
    turned = table(x)
    first, second = ([0, 2], [1, 3]) if adjacent else ([0, 1], [2, 3])
    angles = torch.outer(torch.arange(6.0), torch.tensor([1.0, 1e-2])).double()[:, None]
    pairs = torch.complex(x[..., first], x[..., second]) * torch.polar(torch.full_like(angles, 1.5), angles)
    torch.testing.assert_close(turned[..., first], pairs.real, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(turned[..., second], pairs.imag, rtol=1e-6, atol=1e-6)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert torch.autograd.gradcheck(table, (x,))


def test_dynamic_scaling_holds_up_to_the_models_positions() -> None:
    table = RotaryTable(RopeSpec(1e4, DynamicScaling(32)), 8, torch.float32, torch.device("cpu"))
    plain = RotaryTable(RopeSpec(1e4), 8, torch.float32, torch.device("cpu"))
    assert torch.equal(table.upto(32).sin, plain.upto(32).sin)
    with pytest.raises(ValueError, match=r"33 tokens: dynamic RoPE .* max_position_embeddings \(32\)"):
        table.upto(33)
