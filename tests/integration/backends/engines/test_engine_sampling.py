"""What is drawn: distributions, truncation, seeds, stops, and bit-identical repetition."""

import numpy as np
import torch
from engine_models import EOS, VOCAB, Reference, prompts

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.launch import EngineProcess
from relax_engine.backends.engines.types import GenerateOutput

PROMPT = [5, 17, 33, 8, 90]


def bits(outputs: list[GenerateOutput]) -> list[tuple[bytes, bytes]]:
    return [(output.output_ids.tobytes(), output.log_probs.tobytes()) for output in outputs]


async def first_tokens(engine: EngineProcess, count: int, **params: object) -> list[GenerateOutput]:
    async with EngineClient(engine.url) as client:
        return await client.generate_batch(
            [PROMPT], {"n": count, "max_new_tokens": 1, "ignore_eos": True, "sampling_seed": 1000, **params}
        )


async def test_samples_follow_the_distribution(engine: EngineProcess, reference: Reference) -> None:
    count, temperature = 4000, 1.3
    outputs = await first_tokens(engine, count, temperature=temperature)
    exact = torch.softmax(reference.logits(PROMPT)[-1].double() / temperature, -1).numpy()
    seen = np.bincount([int(output.output_ids[0]) for output in outputs], minlength=VOCAB)
    # Tokens expected fewer than five times are pooled, as the chi-square approximation needs.
    common = exact * count >= 5
    observed = np.append(seen[common], seen[~common].sum())
    expected = np.append(exact[common], exact[~common].sum()) * count
    statistic = float(((observed - expected) ** 2 / expected).sum())
    freedom = len(observed) - 1
    # Wilson-Hilferty: the 0.999 quantile of chi-square.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert freedom > 20
    assert statistic < limit


async def test_top_k_top_p_and_min_p_keep_the_right_tokens(engine: EngineProcess, reference: Reference) -> None:
    probs = torch.softmax(reference.logits(PROMPT)[-1].double(), -1).numpy()
    order = np.argsort(-probs)
    before = np.cumsum(probs[order]) - probs[order]
    cases = {
        "top_k": (3, set(order[:3].tolist())),
        "top_p": (0.6, set(order[before <= 0.6].tolist())),
        "min_p": (0.3, set(np.nonzero(probs >= 0.3 * probs.max())[0].tolist())),
    }
    for name, (value, allowed) in cases.items():
        outputs = await first_tokens(engine, 400, **{name: value})
        drawn = {int(output.output_ids[0]) for output in outputs}
        assert drawn == allowed, name
        mass = sum(probs[token] for token in allowed)
        for output in outputs[:50]:
            expected = np.log(probs[int(output.output_ids[0])] / mass)
            assert abs(expected - float(output.log_probs[0])) < 1e-4, name


async def test_a_seed_gives_the_same_tokens_in_any_company(engine: EngineProcess) -> None:
    params = {"max_new_tokens": 20, "ignore_eos": True, "temperature": 1.0}
    others = prompts(7, seed=3)
    async with EngineClient(engine.url) as client:
        alone = await client.generate(PROMPT, {**params, "sampling_seed": 42})
        mixed = await client.generate_batch(
            [*others, PROMPT],
            [{**params, "sampling_seed": i, "top_k": 5, "max_new_tokens": 9 + i} for i in range(7)]
            + [{**params, "sampling_seed": 42}],
        )
        grouped = await client.generate_batch([PROMPT], {**params, "n": 4, "sampling_seed": 40})
    assert mixed[-1].output_ids.tolist() == alone.output_ids.tolist()
    assert grouped[2].output_ids.tolist() == alone.output_ids.tolist()
    assert len({tuple(output.output_ids.tolist()) for output in grouped}) == 4


async def test_the_same_batch_is_bit_identical_after_other_work(engine: EngineProcess) -> None:
    batch = [prompt for prompt in prompts(6, seed=9) for _ in range(4)]
    params = [{"max_new_tokens": 30, "temperature": 0.8, "sampling_seed": 100 + i} for i in range(len(batch))]
    async with EngineClient(engine.url) as client:
        first = await client.generate_batch(batch, params)
        await client.generate_batch(prompts(40, seed=10), {"max_new_tokens": 60, "top_p": 0.9})
        await client.score(prompts(3, seed=11))
        second = await client.generate_batch(batch, params)
    assert bits(first) == bits(second)
    assert len({len(output.output_ids) for output in first}) > 1, "rows of different lengths exercise compaction"


async def test_stop_tokens_strings_and_minimum_length(engine: EngineProcess, reference: Reference) -> None:
    greedy = reference.greedy(PROMPT, 40)
    stop_id = next(token for token in greedy[3:] if token != EOS)
    cut = greedy.index(stop_id)
    params = {"temperature": 0, "max_new_tokens": 40}
    async with EngineClient(engine.url) as client:
        by_id = await client.generate(PROMPT, {**params, "stop_token_ids": [stop_id]})
        held = await client.generate(PROMPT, {**params, "stop_token_ids": [stop_id], "min_new_tokens": cut + 3})
        by_text = await client.generate(PROMPT, {**params, "stop": [f"w{stop_id}"], "ignore_eos": True})
        ignored = await client.generate(PROMPT, {**params, "stop_token_ids": [stop_id], "ignore_eos": True})
    end = min(cut, greedy.index(EOS)) if EOS in greedy else cut
    assert by_id.output_ids.tolist() == greedy[: end + 1]
    assert by_id.finish_reason == {"type": "stop", "matched": greedy[end]}
    assert by_id.text == "".join(f"w{token}" for token in greedy[:end])
    assert len(held.output_ids) >= cut + 3
    assert not {stop_id, EOS} & set(held.output_ids[: cut + 2].tolist())
    assert by_text.finish_reason == {"type": "stop", "matched": f"w{stop_id}"}
    assert f"w{stop_id}" not in by_text.text
    assert ignored.finish_reason == {"type": "length", "length": 40}
    assert ignored.output_ids.tolist() == greedy
