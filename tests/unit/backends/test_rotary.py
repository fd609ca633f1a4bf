"""Rotary frequencies of every kind of scaling, read from a configuration, against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from relax_engine.backends.rotary import inverse_frequencies, vector_scale
from relax_engine.checkpoint.errors import UnsupportedModelError
from relax_engine.checkpoint.rope import DynamicScaling, RopeSpec, read_rope

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256}
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "linear", "factor": 4.0, "partial_rotary_factor": 0.5},
    YARN,
    {**YARN, "factor": 40.0, "beta_fast": 16, "beta_slow": 2},
    {**YARN, "truncate": False},
    {**YARN, "attention_factor": 0.8},
    {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0},
    {**YARN, "factor": None},
    {**YARN, "partial_rotary_factor": 0.25},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
]


def _config(parameters: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=4096,
        rope_parameters={"rope_theta": 5e5, **parameters},
    )


@pytest.mark.parametrize("parameters", SCALINGS)
def test_frequencies_and_scale_equal_transformers(parameters: dict[str, Any]) -> None:
    config = _config(parameters)
    expected, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
    rope = read_rope("Llama", config.to_dict())
    torch.testing.assert_close(inverse_frequencies(rope, 64), expected, rtol=1e-6, atol=0.0)
    assert vector_scale(rope) == pytest.approx(factor, rel=1e-6)


def test_unscaled_frequencies_are_powers_of_the_base() -> None:
    expected = torch.tensor([5e5 ** (-2 * i / 64) for i in range(32)])
    torch.testing.assert_close(inverse_frequencies(RopeSpec(5e5), 64), expected)


def test_dynamic_scaling_changes_nothing_up_to_the_models_positions() -> None:
    config = _config({"rope_type": "dynamic", "factor": 4.0})
    rope = read_rope("Llama", config.to_dict())
    assert rope == RopeSpec(5e5, DynamicScaling(4096))
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, torch.device("cpu"), seq_len=4096)
    torch.testing.assert_close(inverse_frequencies(rope, 64), expected, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 2.0}},
    ],
)
def test_all_spellings(spelling: dict[str, Any]) -> None:
    rope = read_rope("Llama", spelling)
    assert rope.theta == 1e6
    torch.testing.assert_close(inverse_frequencies(rope, 8)[0], torch.tensor(0.5))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"rope_type": "longrope"},
            r"type 'longrope' is not supported \(supported: 'default', 'linear', 'dynamic'",
        ),
        ({"rope_type": "linear", "factor": 0.5}, "scaling by 0.5, which must be at least 1"),
        ({"partial_rotary_factor": 1.5}, r"partial_rotary_factor must be in \(0, 1\], got 1.5"),
    ],
)
def test_what_is_not_known_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read_rope("Llama", {"rope_parameters": parameters, "max_position_embeddings": 64})


def test_an_odd_number_of_rotated_dimensions_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="25 rotated dimensions of a head of 64 are not pairs"):
        inverse_frequencies(RopeSpec(1e4, fraction=0.4), 64)
