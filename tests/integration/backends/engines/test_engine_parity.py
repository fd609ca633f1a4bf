"""The engine's numbers against a fresh Hugging Face forward pass."""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_models import CONTEXT, Reference, prompts

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.launch import EngineProcess, launch_engine
from relax_engine.backends.engines.types import EngineRefusedError

TEMPERATURES = (0.5, 1.0, 1.3)


@pytest.mark.parametrize(
    ("kind", "tied"),
    [
        *itertools.product(["qwen3", "qwen2", "llama"], [True, False]),
        ("qwen3moe", True),
        ("qwen3moe", False),
        ("qwen2moe", False),
        ("mistral", False),
        ("glm4", False),
        ("deepseekv3", False),
    ],
)
async def test_log_probs_and_greedy_equal_hugging_face(model_of: Callable[..., Path], kind: str, tied: bool) -> None:
    directory = model_of(kind, tied)
    reference = Reference(directory)
    batch = prompts(6, seed=1)
    params = [
        {"temperature": TEMPERATURES[i % 3], "n": 2, "max_new_tokens": 24, "ignore_eos": True, "sampling_seed": i}
        for i in range(6)
    ]
    with launch_engine(directory, max_total_tokens=8000) as process:
        async with EngineClient(process.url) as client:
            sampled = await client.generate_batch(batch, params)
            greedy = await client.generate_batch(batch, {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True})
            scored = await client.score(batch)
    for index, output in enumerate(sampled):
        prompt, temperature = batch[index // 2], params[index // 2]["temperature"]
        assert len(output.output_ids) == 24
        expected = reference.log_probs(prompt, output.output_ids.tolist(), temperature)
        assert np.abs(expected - output.log_probs).max() < 1e-4
        assert output.cached_tokens == (len(prompt) if index % 2 else 0)
    for prompt, output, scores in zip(batch, greedy, scored, strict=True):
        assert output.output_ids.tolist() == reference.greedy(prompt, 24)
        assert np.abs(reference.log_probs(prompt, output.output_ids.tolist(), 1.0) - output.log_probs).max() < 1e-4
        assert np.abs(reference.log_probs(prompt[:1], prompt[1:], 1.0) - scores).max() < 1e-4


async def test_long_prompts_are_computed_in_chunks(engine: EngineProcess, reference: Reference) -> None:
    batch = prompts(30, seed=2, low=200, high=CONTEXT - 4)
    async with EngineClient(engine.url) as client:
        outputs = await client.generate_batch(batch, {"max_new_tokens": 4, "ignore_eos": True, "sampling_seed": 3})
        scored = await client.score([[*batch[0], 7, 8, 9, 10][:CONTEXT]])
    for prompt, output in list(zip(batch, outputs, strict=True))[::5]:
        expected = reference.log_probs(prompt, output.output_ids.tolist(), 1.0)
        assert np.abs(expected - output.log_probs).max() < 1e-4
    sequence = [*batch[0], 7, 8, 9, 10][:CONTEXT]
    assert np.abs(reference.log_probs(sequence[:1], sequence[1:], 1.0) - scored[0]).max() < 1e-4


async def test_a_teacher_scores_responses_and_the_likeliest_tokens_in_their_place(
    engine: EngineProcess, reference: Reference
) -> None:
    sequences = prompts(5, seed=8, low=6, high=CONTEXT - 4)
    sequences += [sequences[0], [5, 6]]  # the same twice, and one with a single prompt token
    responses, top = [4, 1, 5, 2, 3, 2, 1], 3
    async with EngineClient(engine.url) as client:
        scored = await client.score_responses(sequences, responses, top=top)
        plain = await client.score_responses(sequences[:2], responses[:2])
        with pytest.raises(EngineRefusedError, match=r"top_logprobs_num must be in \[0, \d+\] .* got 999999"):
            await client.score_responses(sequences[:1], [1], top=999999)
    for sequence, count, output in zip(sequences, responses, scored, strict=True):
        log_probs = torch.log_softmax(reference.logits(sequence)[-count - 1 : -1], -1)
        expected = log_probs.topk(top)
        assert output.input_top_ids.tolist() == expected.indices.tolist()
        assert np.abs(output.input_top_log_probs - expected.values.numpy()).max() < 1e-4
        sampled = log_probs.gather(1, torch.tensor(sequence[-count:])[:, None])[:, 0].numpy()
        assert np.abs(output.input_log_probs - sampled).max() < 1e-4
    assert plain[0].input_top_ids.size == 0
    assert np.abs(plain[0].input_log_probs - scored[0].input_log_probs).max() < 1e-5


async def test_bfloat16_stays_close(qwen3: Path, reference: Reference) -> None:
    batch = prompts(4, seed=5)
    with launch_engine(qwen3, dtype="bfloat16", max_total_tokens=8000) as process:
        async with EngineClient(process.url) as client:
            outputs = await client.generate_batch(batch, {"max_new_tokens": 16, "ignore_eos": True, "sampling_seed": 1})
    for prompt, output in zip(batch, outputs, strict=True):
        expected = reference.log_probs(prompt, output.output_ids.tolist(), 1.0)
        # Eight bits of mantissa through three layers of weights of order 0.15.
        assert np.abs(expected - output.log_probs).mean() < 0.1
