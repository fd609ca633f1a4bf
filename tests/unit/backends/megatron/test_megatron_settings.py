"""Settings read from the flat configuration, schedules in closed form, RoPE frequencies."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from relax_engine.backends.megatron.optimizer import build_scheduler
from relax_engine.backends.megatron.rope import RotaryTable, inverse_frequencies
from relax_engine.backends.megatron.settings import OptimizerSettings, RecomputeSettings, read_settings
from relax_engine.checkpoint.families import RopeSpec
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


@pytest.mark.parametrize("scaled", [False, True])
def test_frequencies_equal_transformers(scaled: bool) -> None:
    rope = RopeSpec(5e5, 8.0, 1.0, 4.0, 512) if scaled else RopeSpec(1e4)
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": rope.theta}
    if scaled:
        parameters |= {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        }
    config = LlamaConfig(hidden_size=128, num_attention_heads=2, rope_parameters=parameters)
    if scaled:
        expected, factor = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        assert factor == 1.0
    else:
        expected = 1.0 / 1e4 ** (torch.arange(0, 64, 2).float() / 64)
    torch.testing.assert_close(inverse_frequencies(rope, 64), expected)


def test_the_table_grows_and_keeps_its_values() -> None:
    table = RotaryTable(RopeSpec(1e4), 8, torch.float32, torch.device("cpu"))
    short = [t.clone() for t in table.upto(3)]
    long = table.upto(100)
    assert (long[0].shape, long[1].shape) == ((100, 1, 8), (100, 1, 4))
    assert all(torch.equal(a, b[:3]) for a, b in zip(short, long, strict=True))
