"""Pausing, aborting, memory, refusals and reports of a running engine."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import numpy as np
import pytest
from engine_models import CONTEXT, VOCAB, Reference, prompts

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.launch import EngineProcess
from relax_engine.backends.engines.types import EngineDeadlineError, EngineRefusedError, EngineUnreachableError

PROMPT = [5, 17, 33, 8]
LONG = {"max_new_tokens": CONTEXT - 10, "ignore_eos": True}


@pytest.fixture
async def client(engine: EngineProcess) -> AsyncIterator[EngineClient]:
    async with EngineClient(engine.url, timeout_s=60) as client:
        yield client
        await client.resume()


async def started(client: EngineClient, count: int = 1) -> None:
    """Return once `count` requests are running."""
    async with asyncio.timeout(20):
        while (await client.loads())[0]["num_running_reqs"] < count:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_a_pause_changes_nothing_but_time(client: EngineClient, reference: Reference, mode: str) -> None:
    params = {**LONG, "sampling_seed": 5}
    undisturbed = await client.generate(PROMPT, params)
    task = asyncio.create_task(client.generate(PROMPT, params))
    await started(client)
    await client.pause(mode)  # type: ignore[arg-type]
    await asyncio.sleep(0.2)
    assert not task.done()
    await client.resume()
    output = await task
    assert output.num_retractions == (1 if mode == "retract" else 0)
    assert output.output_ids.tolist() == undisturbed.output_ids.tolist()
    expected = reference.log_probs(PROMPT, output.output_ids.tolist(), 1.0)
    assert np.abs(expected - output.log_probs).max() < 1e-4


async def test_pause_abort_returns_partial_output_and_holds_new_requests(
    client: EngineClient, reference: Reference
) -> None:
    task = asyncio.create_task(client.generate(PROMPT, LONG))
    await started(client)
    await client.pause("abort")
    output = await task
    assert output.finish_reason["type"] == "abort"
    assert 0 < len(output.output_ids) == len(output.log_probs) < LONG["max_new_tokens"]
    expected = reference.log_probs(PROMPT, output.output_ids.tolist(), 1.0)
    assert np.abs(expected - output.log_probs).max() < 1e-4
    waiting = asyncio.create_task(client.generate(PROMPT, {"max_new_tokens": 3, "ignore_eos": True}))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await client.resume()
    assert (await waiting).finish_reason == {"type": "length", "length": 3}


async def test_abort_selects_by_request_id(client: EngineClient) -> None:
    tasks = [
        asyncio.create_task(client.generate(PROMPT, {**LONG, "sampling_seed": i}, rid=rid))
        for i, rid in enumerate(["keep-1", "drop-1", "drop-2"])
    ]
    await started(client, 3)
    await client.abort("drop")
    keep, *dropped = await asyncio.gather(*tasks)
    assert keep.finish_reason["type"] == "length"
    assert [output.rid for output in dropped] == ["drop-1", "drop-2"]
    assert all(output.finish_reason["type"] == "abort" for output in dropped)
    tasks = [asyncio.create_task(client.generate(PROMPT, LONG)) for _ in range(3)]
    await started(client, 3)
    await client.abort()
    assert [output.finish_reason["type"] for output in await asyncio.gather(*tasks)] == ["abort"] * 3


async def test_requests_arriving_at_any_time_share_the_steps(client: EngineClient, reference: Reference) -> None:
    batch = prompts(24, seed=21)
    budgets = np.random.default_rng(4).integers(1, 90, size=len(batch)).tolist()

    async def later(index: int) -> Any:
        await asyncio.sleep(0.004 * index)
        params = {"max_new_tokens": budgets[index], "ignore_eos": True, "sampling_seed": index, "temperature": 0.7}
        return await client.generate(batch[index], params)

    outputs = await asyncio.gather(*(later(index) for index in range(len(batch))))
    for prompt, budget, output in zip(batch, budgets, outputs, strict=True):
        assert len(output.output_ids) == budget
        expected = reference.log_probs(prompt, output.output_ids.tolist(), 0.7)
        assert np.abs(expected - output.log_probs).max() < 1e-4


async def test_a_client_that_goes_away_aborts_its_requests(engine: EngineProcess, client: EngineClient) -> None:
    await client.pause("in_place")
    async with EngineClient(engine.url) as leaving:
        with pytest.raises(EngineDeadlineError, match=r"/generate did not answer within 0.3 s"):
            await leaving.generate(PROMPT, LONG, deadline_s=0.3)
    async with asyncio.timeout(10):
        while (await client.loads())[0]["num_total_reqs"]:
            await asyncio.sleep(0.05)


async def test_flush_is_refused_while_requests_hold_cache(client: EngineClient) -> None:
    task = asyncio.create_task(client.generate(PROMPT, LONG))
    await started(client)
    await client.pause("in_place")
    with pytest.raises(EngineRefusedError, match=r"400: 1 running requests hold cache"):
        await client.flush_cache()
    await client.pause("retract")
    await client.flush_cache()
    await client.resume()
    assert (await task).num_retractions == 1


async def test_released_memory_comes_back_with_the_same_weights(client: EngineClient) -> None:
    params = {"max_new_tokens": 8, "sampling_seed": 1, "ignore_eos": True}
    before = await client.generate(PROMPT, params)
    checksum = await client.weights_checksum()
    await client.release_memory()
    with pytest.raises(EngineRefusedError, match="resume_memory_occupation"):
        await client.generate(PROMPT, params)
    await client.resume_memory()
    after = await client.generate(PROMPT, params)
    assert after.log_probs.tobytes() == before.log_probs.tobytes()
    assert await client.weights_checksum() == checksum


BAD = [
    ({"temperature": -1}, "sampling_params.temperature must be >= 0, got -1"),
    ({"temperature": "hot"}, "sampling_params.temperature must be a number >= 0, got 'hot'"),
    ({"top_p": 0}, "sampling_params.top_p must be in (0, 1], got 0"),
    ({"top_p": 1.5}, "sampling_params.top_p must be in (0, 1], got 1.5"),
    ({"top_k": 0}, "sampling_params.top_k must be -1 (off) or an integer >= 1, got 0"),
    ({"min_p": 2}, "sampling_params.min_p must be in [0, 1], got 2"),
    ({"max_new_tokens": -1}, "sampling_params.max_new_tokens must be an integer >= 0, got -1"),
    ({"max_new_tokens": 4, "min_new_tokens": 5}, "sampling_params.min_new_tokens must be an integer in [0, max_new_to"),
    ({"n": 0}, "sampling_params.n must be an integer in [1, 4096], got 0"),
    ({"stop_token_ids": [VOCAB]}, f"sampling_params.stop_token_ids must be a list of token ids in [0, {VOCAB})"),
    ({"sampling_seed": -3}, "sampling_params.sampling_seed must be an integer in [0, 2**63), got -3"),
    ({"tempurature": 1}, "sampling_params.tempurature is not a known field"),
    ({"frequency_penalty": 0.5}, "sampling_params.frequency_penalty=0.5 is not supported"),
    (
        {"max_new_tokens": CONTEXT},
        f"input_ids[0] has 4 tokens and max_new_tokens={CONTEXT}: together {CONTEXT + 4}, above the context length",
    ),
]


@pytest.mark.parametrize(("params", "message"), BAD)
async def test_bad_sampling_parameters_are_refused(client: EngineClient, params: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineRefusedError, match=re.escape(f"answered 400: {message}")):
        await client.generate(PROMPT, params)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "exactly one of input_ids and text must be given"),
        ({"input_ids": []}, "input_ids must be a non-empty list"),
        ({"input_ids": [1, VOCAB]}, f"input_ids[0] holds {VOCAB}, token ids are integers in [0, {VOCAB})"),
        ({"input_ids": "abc"}, "input_ids must be a non-empty list of token ids or of such lists, got 'abc'"),
        ({"input_ids": [1] * (CONTEXT + 1), "sampling_params": {"max_new_tokens": 0}}, "above the context length"),
        ({"input_ids": [[1], [2]], "sampling_params": [{}]}, "sampling_params has 1 entries for 2 prompts"),
        ({"input_ids": [1], "return_logprobs": True}, "'return_logprobs' is not a field of /generate"),
        ({"input_ids": [1], "stream": True}, "stream=True is not supported"),
        (
            {"input_ids": [1, 2], "return_logprob": True, "logprob_start_len": 2},
            "logprob_start_len must be -1 (off)",
        ),
    ],
)
async def test_bad_bodies_are_refused(engine: EngineProcess, body: dict[str, Any], message: str) -> None:
    async with aiohttp.ClientSession() as session, session.post(f"{engine.url}/generate", json=body) as response:
        assert response.status == 400
        assert message in (await response.json())["error"]["message"]


async def test_text_in_and_out(engine: EngineProcess) -> None:
    body = {"text": "w5 w17 w33", "sampling_params": {"max_new_tokens": 2, "temperature": 0, "ignore_eos": True}}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{engine.url}/generate", json=body) as response:
            by_text = await response.json()
        body = {"input_ids": [5, 17, 33], "sampling_params": body["sampling_params"]}
        async with session.post(f"{engine.url}/generate", json=body) as response:
            by_ids = await response.json()
    assert by_text["meta_info"]["prompt_tokens"] == 3
    assert by_text["output_ids"] == by_ids["output_ids"]
    assert "output_token_logprobs" not in by_text["meta_info"]


async def test_reports(client: EngineClient, qwen3: Any) -> None:
    await client.health()
    await client.health(generate=True)
    info = await client.model_info()
    assert (info["model_path"], info["weight_version"]) == (str(qwen3), "0")
    assert (await client.server_info())["max_total_num_tokens"] == 20000
    metrics = await client.metrics()
    assert re.search(r"^sglang:num_running_reqs 0$", metrics, re.M)
    assert int(re.search(r"^sglang:generation_tokens_total (\d+)$", metrics, re.M)[1]) > 0  # type: ignore[index]


async def test_no_server_is_an_error_after_bounded_retries() -> None:
    async with EngineClient("http://127.0.0.1:9", timeout_s=20) as client:
        with pytest.raises(EngineUnreachableError, match=r"127\.0\.0\.1:9/model_info"):
            await client.model_info()
