"""Responses that are cut off and continued, on real engines: the same tokens, and the log-probs of who sampled them."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relax_engine.backends.engines.launch import EngineProcess
from relax_engine.rollout.generate import CUT, Generator
from relax_engine.rollout.partial import is_finished
from relax_engine.rollout.pool import EnginePool, RolloutError
from relax_engine.rollout.sampling import SamplingSettings
from relax_engine.types import Sample, SampleGroup, SampleStatus

LENGTH = 200
SAMPLING = SamplingSettings(temperature=0.8, max_new_tokens=LENGTH, seed=3)
TIMEOUT_S = 60.0


def make_groups(tokenizer: Any, count: int, size: int = 2) -> list[SampleGroup]:
    groups = []
    for number in range(count):
        tokens = tokenizer.encode(f"{number} + {number} = ")
        groups.append([Sample(group_index=number, index=number * size + i, tokens=list(tokens)) for i in range(size)])
    return groups


async def cut_after(seconds: float, pool: EnginePool, generator: Generator, groups: Sequence[SampleGroup]) -> None:
    """Generate for a while, and cut off what may be."""
    tasks = [asyncio.create_task(generator.generate([group])) for group in groups]
    await asyncio.sleep(seconds)
    with generator.interruption():
        while any(not task.done() for task, group in zip(tasks, groups, strict=True) if not kept(generator, group)):
            await pool.abort(CUT)
            await asyncio.sleep(0.02)
    await asyncio.gather(*tasks)


def kept(generator: Generator, group: SampleGroup) -> bool:
    return generator.is_protected(group)


def flat(groups: Sequence[SampleGroup]) -> list[Sample]:
    return [sample for group in groups for sample in group]


async def test_pieces_are_what_one_request_gives(engines: list[EngineProcess], tokenizer: Any) -> None:
    """Cut off and continued, on whichever engine is free; seeded sampling and equal weights."""
    whole, pieces = make_groups(tokenizer, 4), make_groups(tokenizer, 4)
    async with EnginePool([engine.url for engine in engines], timeout_s=TIMEOUT_S) as pool:
        generator = Generator(pool, SAMPLING, tokenizer=tokenizer)
        await generator.generate(whole)
        rounds = 0
        while not all(map(is_finished, flat(pieces))):
            rounds += 1
            await cut_after(0.03 * rounds, pool, generator, pieces)
    assert rounds > 1
    assert max(sample.abort_count for sample in flat(pieces)) >= 1
    for one, several in zip(flat(whole), flat(pieces), strict=True):
        assert several.rollout_tokens == one.rollout_tokens
        assert (several.tokens, several.response, several.status) == (one.tokens, one.response, one.status)
        assert several.loss_mask == [1] * one.response_length
        np.testing.assert_allclose(several.rollout_log_probs, one.rollout_log_probs, atol=2e-5)
        assert [(span.start, span.end) for span in several.weight_versions] == [(0, one.response_length)]


async def test_a_stop_string_across_the_seam_is_found(engines: list[EngineProcess], tokenizer: Any) -> None:
    """Stopped at the first occurrence of a string, wherever the response was cut."""
    whole, pieces = make_groups(tokenizer, 2), make_groups(tokenizer, 2)
    async with EnginePool([engines[0].url], timeout_s=TIMEOUT_S) as pool:
        await Generator(pool, SAMPLING).generate(whole)
        text = [sample.response for sample in flat(whole)]
        stop = next(t[i : i + 3] for t in text for i in range(20, len(t) - 3) if re.fullmatch("[ -~]{3}", t[i : i + 3]))
        stopping = replace(SAMPLING, stop=[stop])
        generator = Generator(pool, stopping, tokenizer=tokenizer)
        while not all(map(is_finished, flat(pieces))):
            await cut_after(0.03, pool, generator, pieces)
    assert pieces[0][0].status is SampleStatus.COMPLETED
    assert max(sample.abort_count for sample in flat(pieces)) >= 1
    for before, sample in zip(text, flat(pieces), strict=True):
        assert sample.response == before.partition(stop)[0]
    assert any(stop in before for before in text)


async def test_each_token_has_the_log_prob_of_the_weights_that_sampled_it(
    engines: list[EngineProcess], model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    """Against Hugging Face, old weights before the seam and new ones, with a recomputed prefix, behind it."""
    from transformers import AutoModelForCausalLM

    old = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    new = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.mul_(1.2)
    new.save_pretrained(tmp_path)
    groups = make_groups(tokenizer, 6)
    async with EnginePool([engines[0].url], timeout_s=TIMEOUT_S) as pool:
        client = pool.engines[engines[0].url].client
        generator = Generator(pool, SAMPLING, tokenizer=tokenizer)
        while not any(sample.response_length for sample in flat(groups)):
            await cut_after(0.04, pool, generator, groups)
        await client.update_weights_from_disk(str(tmp_path), version=1)
        await generator.generate(groups)
        await client.update_weights_from_disk(str(model), version=0)
    several = [sample for sample in flat(groups) if len(sample.weight_versions) == 2]
    apart = 0.0
    for sample in several:
        seam = sample.weight_versions[0].end
        assert [(s.version, s.start, s.end) for s in sample.weight_versions] == [
            (0, 0, seam),
            (1, seam, sample.response_length),
        ]
        expected = np.concatenate([log_probs(old, sample)[:seam], log_probs(new, sample)[seam:]])
        np.testing.assert_allclose(sample.rollout_log_probs, expected, atol=1e-4)
        apart = max(apart, float(np.abs(log_probs(old, sample)[seam:] - expected[seam:]).max()))
    assert apart > 1e-2


def log_probs(model: Any, sample: Sample) -> np.ndarray:
    """Of the response, at the sampling temperature, float32 `[response_length]`."""
    with torch.no_grad():
        logits = model(torch.tensor([sample.tokens])).logits[0, sample.prompt_length - 1 : -1]
    scores = torch.log_softmax(logits / SAMPLING.temperature, -1)
    return scores.gather(1, torch.tensor(sample.rollout_tokens)[:, None])[:, 0].numpy()


async def test_a_group_that_was_cut_off_often_enough_is_left_to_finish(
    engines: list[EngineProcess], tokenizer: Any
) -> None:
    candidates = 24
    async with EnginePool([engines[0].url], timeout_s=TIMEOUT_S) as pool:
        whole = make_groups(tokenizer, candidates)
        await Generator(pool, SAMPLING, tokenizer=tokenizer).generate(whole)
        # Two groups that do not end by themselves before the cut.
        chosen = [i for i, group in enumerate(whole) if all(sample.response_length == LENGTH for sample in group)][:2]
        fresh = make_groups(tokenizer, candidates)
        groups = [fresh[i] for i in chosen]
        groups[1][0].abort_count = 1
        generator = Generator(pool, SAMPLING, tokenizer=tokenizer, max_aborted=1)
        await cut_after(0.01, pool, generator, groups)
    assert [sample.status for sample in groups[0]] == [SampleStatus.ABORTED] * 2
    assert [sample.abort_count for sample in groups[0]] == [1, 1]
    assert all(map(is_finished, groups[1]))


async def test_an_abort_that_nobody_asked_for_is_an_error(engines: list[EngineProcess], tokenizer: Any) -> None:
    async with EnginePool([engines[0].url], timeout_s=TIMEOUT_S) as pool:
        task = asyncio.create_task(Generator(pool, SAMPLING).generate(make_groups(tokenizer, 1)))
        await asyncio.sleep(0.05)
        await pool.abort()
        with pytest.raises(RolloutError, match=r"gave up sample [01] of group 0 after \d+ tokens: Aborted"):
            await task
