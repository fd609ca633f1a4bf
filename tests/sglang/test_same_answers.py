"""`/generate` of both engines: the same fields with the same meanings, and transformers' log-probs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from sglang_suite import CONTEXT, FACTS, KEY, Engines

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.types import EngineRefusedError, VersionSpan
from tests.integration.backends.engines.engine_models import Reference

pytestmark = pytest.mark.sglang

VOCAB, EOS = 256, 257
PROMPTS = [[int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, 5 + 9 * seed)] for seed in range(5)]
LONG = {"max_new_tokens": 40, "ignore_eos": True}
SAME = 1e-4


async def raw(client: EngineClient, **body: Any) -> Any:
    return await client._call("/generate", {"return_logprob": True, **body})


async def test_fields(client: EngineClient) -> None:
    answer = await raw(
        client, input_ids=PROMPTS[1], rid="one", sampling_params={"max_new_tokens": 6, "ignore_eos": True}
    )
    meta = answer["meta_info"]
    assert isinstance(answer["text"], str)
    assert len(answer["output_ids"]) == 6
    assert meta["id"] == "one"
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(PROMPTS[1]), 6)
    assert (meta["cached_tokens"], meta["num_retractions"]) == (0, 0)
    assert meta["weight_version"] == "0"
    assert meta["weight_versions"] == [{"version": "0", "start": 0, "end": 6}]
    assert meta["e2e_latency"] > 0
    assert [entry[1:] for entry in meta["output_token_logprobs"]] == [[token, None] for token in answer["output_ids"]]
    assert all(entry[0] < 0 for entry in meta["output_token_logprobs"])


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
async def test_log_probs_are_those_of_transformers(client: EngineClient, old: Reference, temperature: float) -> None:
    outputs = await client.generate_batch(PROMPTS, {**LONG, "temperature": temperature})
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        expected = old.log_probs(prompt, output.output_ids.tolist(), temperature or 1.0)
        np.testing.assert_allclose(output.log_probs, expected, atol=SAME, rtol=0)


async def test_greedy_tokens(client: EngineClient, old: Reference) -> None:
    output = await client.generate(PROMPTS[2], {**LONG, "temperature": 0.0})
    assert output.output_ids.tolist() == old.greedy(PROMPTS[2], LONG["max_new_tokens"])


async def test_scores_are_those_of_transformers(client: EngineClient, old: Reference) -> None:
    scores = await client.score(PROMPTS)
    for prompt, score in zip(PROMPTS, scores, strict=True):
        np.testing.assert_allclose(score, old.log_probs(prompt[:1], prompt[1:], 1.0), atol=SAME, rtol=0)


async def test_the_likeliest_tokens(client: EngineClient, old: Reference) -> None:
    (scored,) = await client.score_responses([PROMPTS[3]], [4], top=3)
    logits = old.logits(PROMPTS[3]).log_softmax(-1)[-5:-1]
    values, ids = logits.topk(3)
    # SGLang gives the first of the scored tokens no such row.
    rows = len(scored.input_top_ids)
    assert rows in (3, 4)
    assert scored.input_top_ids.tolist() == ids[4 - rows :].tolist()
    np.testing.assert_allclose(scored.input_top_log_probs, values[4 - rows :], atol=SAME, rtol=0)


async def test_requests_of_a_batch_keep_their_names_and_order(client: EngineClient) -> None:
    outputs = await client.generate_batch(PROMPTS, LONG, rids=[f"name-{i}" for i in range(len(PROMPTS))])
    assert [output.rid for output in outputs] == [f"name-{i}" for i in range(len(PROMPTS))]
    assert [output.prompt_tokens for output in outputs] == [len(prompt) for prompt in PROMPTS]


async def test_samples_of_one_prompt_differ(client: EngineClient) -> None:
    outputs = await client.generate_batch([PROMPTS[0], PROMPTS[1]], {**LONG, "n": 3})
    assert [output.prompt_tokens for output in outputs] == [len(PROMPTS[0])] * 3 + [len(PROMPTS[1])] * 3
    assert len({tuple(output.output_ids) for output in outputs}) == 6


async def test_stop_token(client: EngineClient, old: Reference) -> None:
    tokens = old.greedy(PROMPTS[0], 12)
    first = tokens.index(tokens[5])
    output = await client.generate(
        PROMPTS[0], {"max_new_tokens": 12, "temperature": 0.0, "stop_token_ids": [tokens[5]]}
    )
    assert output.output_ids.tolist() == tokens[: first + 1]
    assert output.finish_reason == {"type": "stop", "matched": tokens[5]}


async def test_a_response_may_fill_the_context(client: EngineClient) -> None:
    """SGLang ends responses a little before the context that it was started with."""
    output = await client.generate(PROMPTS[4], {"max_new_tokens": CONTEXT - len(PROMPTS[4]), "ignore_eos": True})
    assert len(output.output_ids) == CONTEXT - len(PROMPTS[4])
    (score,) = await client.score([[*PROMPTS[4], *output.output_ids.tolist()]])
    assert len(score) == CONTEXT - 1


@pytest.mark.parametrize(
    "body",
    [
        {"sampling_params": {}},
        {"input_ids": [], "sampling_params": {}},
        {"input_ids": PROMPTS[0] * CONTEXT, "sampling_params": {}},
        {"input_ids": PROMPTS[0], "sampling_params": {"max_new_tokens": 1000}},
        {"input_ids": PROMPTS[0], "sampling_params": {"temperature": -1}},
        {"input_ids": PROMPTS[0], "sampling_params": {"top_p": 0}},
        {"input_ids": PROMPTS[0], "sampling_params": {"top_k": 0}},
        {"input_ids": PROMPTS[0], "sampling_params": {"temprature": 1}},
        {"input_ids": PROMPTS[0], "sampling_params": {}, "logprob_start_len": 99},
    ],
    ids=lambda body: str(body)[-50:],
)
async def test_refused(client: EngineClient, body: dict[str, Any]) -> None:
    with pytest.raises(EngineRefusedError, match=r"answered 400: \S") as refused:
        await raw(client, **body)
    assert refused.value.status == 400
    await client.generate(PROMPTS[0], {"max_new_tokens": 1})


async def test_the_key(url: str) -> None:
    async with EngineClient(url, timeout_s=10) as stranger:
        await stranger.health()
        await stranger.metrics()
        for call in (stranger.generate(PROMPTS[0], LONG), stranger.pause("abort"), stranger.model_info()):
            with pytest.raises(EngineRefusedError, match="answered 401"):
                await call


async def test_truncated_sampling(client: EngineClient, old: Reference, kind: str) -> None:
    """The tokens are the same choice; SGLang's log-probs are those before the others were left out."""
    output = await client.generate(PROMPTS[1], {**LONG, "top_k": 4})
    ids = [*PROMPTS[1], *output.output_ids.tolist()]
    full = old.logits(ids)[len(PROMPTS[1]) - 1 : -1].log_softmax(-1)
    values, likeliest = full.topk(4)
    chosen = full.gather(1, likeliest.new_tensor(ids[len(PROMPTS[1]) :])[:, None])[:, 0]
    assert (chosen >= values[:, -1]).all()
    expected = chosen if kind == "sglang" else chosen - values.logsumexp(-1)
    np.testing.assert_allclose(output.log_probs, expected, atol=SAME, rtol=0)


async def test_seeds(client: EngineClient, kind: str) -> None:
    """A sample of the embedded engine is a function of its seed."""
    one, two = [await client.generate(PROMPTS[1], {**LONG, "sampling_seed": 5}) for _ in range(2)]
    assert np.array_equal(one.output_ids, two.output_ids) is (kind == "local")


@pytest.mark.parametrize(("field", "message"), [("retrun_logprob", "is not a field"), ("text", "exactly one of")])
async def test_fields_that_are_one_too_many(client: EngineClient, kind: str, field: str, message: str) -> None:
    body = {"input_ids": PROMPTS[0], "sampling_params": {"max_new_tokens": 1}, field: "3 + 4"}
    if kind == "sglang":
        assert len((await client._call("/generate", body))["output_ids"]) == 1
    else:
        with pytest.raises(EngineRefusedError, match=message):
            await client._call("/generate", body)


async def test_load_metrics(client: EngineClient) -> None:
    from relax_engine.elastic.autoscaler.prometheus import parse_metrics

    await client.generate(PROMPTS[0], LONG)
    load = parse_metrics(await client.metrics())
    assert (load.running, load.queued, load.throughput) == (0, 0, 0)
    assert load.ttft.cumulative[float("inf")] > 0
    assert load.queue_time.cumulative[float("inf")] > 0
    (report,) = await client.loads()
    assert (report["num_running_reqs"], report["num_waiting_reqs"]) == (0, 0)
    assert report["max_total_num_tokens"] == 20000


async def test_throughput(engines: Engines, kind: str) -> None:
    """64 requests at once; printed, not judged."""
    prompts = [list(range(32))] * 64
    async with EngineClient(engines.get(kind).url, timeout_s=120, api_key=KEY) as client:
        started = time.monotonic()
        outputs = await client.generate_batch(prompts, {"max_new_tokens": 96, "ignore_eos": True})
        seconds = time.monotonic() - started
    assert [output.weight_versions for output in outputs] == [(VersionSpan("0", 0, 96),)] * 64
    FACTS[f"tokens per second of {kind}, 64 requests of 32 + 96"] = f"{64 * 96 / seconds:.0f}"
