"""Random small models with every odd feature, in the trainer and the embedded engine, against transformers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from worlds import LATENT, VOCAB, YARN, clone, hf_model, make_batch, make_settings, single

from relax_engine.backends.engines.local.engine import EngineOptions, LocalEngine
from relax_engine.backends.engines.local.params import SamplingParams
from relax_engine.backends.engines.local.request import Batch, Request

LENGTHS, RESPONSES = [23, 9, 31, 14], [11, 4, 0, 13]
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "dynamic", "factor": 2.0},
    YARN,
    {**YARN, "attention_factor": 1.2, "truncate": False},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
]


FAMILIES = (
    "Llama", "Qwen2", "Qwen3", "Mistral", "Qwen3Moe", "Qwen2Moe", "Glm4", "DeepseekV2", "DeepseekV3", "Glm4Moe"
)  # fmt: skip


def odd_model(seed: int) -> dict[str, Any]:
    """Options of `hf_model`."""
    draw = random.Random(seed)
    family = FAMILIES[seed % len(FAMILIES)]
    options: dict[str, Any] = {
        "family": family,
        "tied": draw.random() < 0.5,
        "seed": seed,
        "num_hidden_layers": draw.randint(1, 3),
        "num_attention_heads": draw.choice([2, 4, 8]),
        "num_key_value_heads": draw.choice([1, 2]),
        "intermediate_size": draw.choice([20, 48, 70]),
        "rms_norm_eps": draw.choice([1e-6, 1e-3]),
        "rope_parameters": {**draw.choice(SCALINGS), "rope_theta": draw.choice([1e4, 1e6])},
        "sliding_window": None,
        "pad_token_id": None,
    }
    if family in ("Llama", "Qwen3", "Glm4", "Glm4Moe"):
        options["attention_bias"] = draw.random() < 0.5
    if family.startswith("Glm4"):
        options["rope_parameters"]["partial_rotary_factor"] = draw.choice([0.5, 1.0])
    if family.startswith("Qwen") and family.endswith("Moe"):
        options |= {"num_experts": draw.choice([3, 4]), "num_experts_per_tok": draw.randint(1, 3)}
        options |= {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}
        options |= {"norm_topk_prob": draw.random() < 0.5, "decoder_sparse_step": draw.choice([1, 2])}
        options |= {"mlp_only_layers": draw.choice([[], [0]])}
    if family.startswith("Deepseek") or family == "Glm4Moe":
        options |= {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 24}
        options |= {"num_experts_per_tok": draw.randint(1, 4), "n_shared_experts": draw.randint(1, 2)}
        options |= {"first_k_dense_replace": draw.randint(0, 2), "routed_scaling_factor": draw.choice([1.0, 2.5])}
    if family == "Glm4Moe":
        options |= {"use_qk_norm": draw.random() < 0.5, "norm_topk_prob": draw.random() < 0.5}
    if family.startswith("Deepseek"):
        latent = {name: size for name, size in LATENT.items() if name not in options}
        options |= latent | {"num_key_value_heads": options["num_attention_heads"]}
        options |= {"q_lora_rank": draw.choice([None, 20])}
        options |= {"v_head_dim": draw.choice([6, 12, 30])}
        if options["rope_parameters"]["rope_type"] == "yarn":
            options["rope_parameters"] |= {"mscale": 0.7, "mscale_all_dim": draw.choice([0.7, 1.0])}
        if family == "DeepseekV2":
            options["topk_method"] = draw.choice(["greedy", "group_limited_greedy"])
        else:
            options |= {"norm_topk_prob": draw.random() < 0.5, "rope_interleave": draw.random() < 0.5}
    return options


@torch.no_grad()
def _expected(model: Any, tokens: np.ndarray, count: int) -> np.ndarray:
    scores = torch.log_softmax(model(torch.tensor(tokens.astype(np.int64))[None]).logits[0], dim=-1)
    rows = torch.arange(len(tokens) - count - 1, len(tokens) - 1)
    return scores[rows, torch.tensor(tokens.astype(np.int64))[len(tokens) - count :]].numpy()


def _of_engine(directory: Path, prompt: list[int], output: int) -> tuple[list[int], np.ndarray]:
    """A sampled continuation and its log-probs."""
    with torch.inference_mode():
        engine = LocalEngine(EngineOptions(directory, max_total_tokens=512, skip_tokenizer_init=True))
        request = Request("0", tuple(prompt), SamplingParams(max_new_tokens=output), seed=1, stop_ids=frozenset())
        engine.scheduler.submit(Batch([request], lambda: None))
        while engine.scheduler.busy:
            engine.scheduler.advance(lambda: True)
    return request.output_ids, np.array(request.log_probs)


def _check(directory: Path, seed: int) -> None:
    options = odd_model(seed)
    model = hf_model(**options)
    model.save_pretrained(directory)
    backend = single(make_settings(directory), trainable=False)
    batch = make_batch(LENGTHS, RESPONSES)
    actual = backend.forward_log_probs(batch, temperature=1.0, max_tokens=40)
    for row, count in enumerate(RESPONSES):
        expected = _expected(model, batch["tokens"].row(row), count)
        assert np.abs(actual.row(row) - expected).max(initial=0.0) < 1e-4, options
    stored = load_file(directory / "model.safetensors")
    loaded = clone(backend.named_hf_tensors())
    backend.close()
    assert loaded.keys() - {"lm_head.weight"} == stored.keys() - {"lm_head.weight"}, options
    assert all(torch.equal(loaded[name], tensor) for name, tensor in stored.items() if name in loaded), options
    prompt = batch["tokens"].row(2).tolist()
    output, log_probs = _of_engine(directory, prompt, 12)
    assert all(0 <= token < VOCAB for token in output)
    expected = _expected(model, np.array([*prompt, *output]), len(output))
    assert np.abs(log_probs - expected).max() < 1e-4, options


@pytest.mark.parametrize("seed", [8, 9])
def test_some_odd_models(tmp_path: Path, seed: int) -> None:
    _check(tmp_path, seed)


@pytest.mark.long
def test_many_odd_models(tmp_path: Path) -> None:
    for seed in range(90):
        _check(tmp_path / str(seed), seed)
