"""Rewards behind HTTP, with a real server: retries, refusals, both forms of judges."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr

from relax_engine.access.policy import AccessPolicy
from relax_engine.rewards import RewardError, RewardExecutor, RewardSettings
from relax_engine.rewards.http import HttpError, post_json
from relax_engine.rewards.terms import read_terms
from relax_engine.types import Sample

Handler = Callable[[Any], Awaitable[web.Response]]


class Server:
    """Answers posted JSON with what `answers` holds for the path, one after the other, the last again and again."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Any]] = {}
        self.seen: list[Any] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.seen.append(await request.json())
        queue = self.answers[request.path]
        answer = queue.pop(0) if len(queue) > 1 else queue[0]
        if callable(answer):
            answer = answer(self.seen[-1])
        return web.Response(status=answer) if isinstance(answer, int) else web.json_response(answer)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    app = web.Application()
    app.router.add_post("/{path:.*}", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


async def score(samples: list[Sample], args: Any, **settings: Any) -> list[Any]:
    with RewardExecutor(RewardSettings(**settings), args) as executor:
        await executor.score(samples)
    return [sample.reward for sample in samples]


async def test_remote_reward_is_tried_again(server: Server) -> None:
    server.answers["/score"] = [503, 429, 0.25]
    args = SimpleNamespace(rm_url=f"{server.url}/score")
    sample = Sample(prompt="p", response="r", label="l", metadata={"k": 1})
    assert await score([sample], args, rm_type="remote_rm") == [0.25]
    assert server.seen == [{"prompt": "p", "response": "r", "label": "l", "metadata": {"k": 1}}] * 3


async def test_remote_reward_may_be_an_object(server: Server) -> None:
    server.answers["/score"] = [{"score": 1, "why": "good"}]
    args = SimpleNamespace(rm_url=f"{server.url}/score")
    assert await score([Sample()], args, rm_type="remote_rm", reward_key="score") == [{"score": 1.0, "why": "good"}]


async def test_refusals_are_final_and_failures_are_counted(server: Server) -> None:
    server.answers |= {"/no": [404], "/down": [500]}
    with pytest.raises(HttpError, match="/no answered 404"):
        await post_json(f"{server.url}/no", {})
    assert len(server.seen) == 1
    with pytest.raises(HttpError, match="/down failed 2 times, last with 500"):
        await post_json(f"{server.url}/down", {}, tries=2)
    with pytest.raises(HttpError, match="failed 2 times, last with ClientConnectorError"):
        await post_json("http://127.0.0.1:9/", {}, tries=2)


async def test_a_server_that_is_down_costs_one_score_if_failures_have_one(server: Server) -> None:
    server.answers["/down"] = [404]
    args = SimpleNamespace(rm_url=f"{server.url}/down")
    with pytest.raises(RewardError, match=r"HttpError: .* answered 404"):
        await score([Sample()], args, rm_type="remote_rm")
    sample = Sample()
    assert await score([sample], args, rm_type="remote_rm", failure_score=-0.5) == [-0.5]
    assert "answered 404" in sample.metadata["reward_failure"]


async def test_judge_with_chat_completions(server: Server) -> None:
    def judge(request: Any) -> Any:
        right = "Answer to grade:\nfive" in request["messages"][0]["content"]
        text = f"<think>Judgement: No</think>Judgement: {'Yes' if right else 'No'}"
        return {"choices": [{"message": {"content": text}}]}

    server.answers["/v1/chat/completions"] = [judge]
    args = SimpleNamespace(genrm_url=f"{server.url}/v1", genrm_model_path=None)
    samples = [Sample(prompt="2+3?", response=text, label="5") for text in ("five", "six")]
    rewards = await score(samples, args, rm_type="genrm", reward_key="score")
    assert rewards == [{"score": 1.0, "judge_failures": 0.0}, {"score": 0.0, "judge_failures": 0.0}]
    assert {key: server.seen[0][key] for key in ("model", "temperature", "max_tokens")} == {
        "model": "default",
        "temperature": 0.1,
        "max_tokens": 4096,
    }
    assert [reward["score"] for reward in await score(samples, args, rm_type="dapo-genrm", reward_key="score")] == [
        1,
        -1,
    ]
    assert await score([Sample(response="x")], args, rm_type="genrm", reward_key="score") == [
        {"score": 0.0, "judge_failures": 0.0}
    ]


async def test_judge_that_generates_compares_in_both_orders(server: Server) -> None:
    server.answers["/genrm/generate"] = [{"response": "Better: A"}, {"response": "Better: B"}, {"response": "?"}]
    args = SimpleNamespace(genrm_url=None, genrm_model_path=None)
    term = {
        "reward": "genrm",
        "mode": "compare",
        "url": f"{server.url}/genrm/generate",
        "route_key": "pairs",
        "unread": 0.3,
    }
    settings = {"terms": read_terms({"judge": term, "short": {"reward": "length", "weight": 2.0, "target": 4}})}
    args.rollout_max_response_len = 8
    rewards = await score([Sample(response="ours", label="theirs", response_length=5)], args, **settings)
    assert rewards == [{"score": pytest.approx(1.0 - 2.0), "judge": 1.0, "short": -1.0}]
    assert [request["route_key"] for request in server.seen] == ["pairs"] * 2
    assert server.seen[0]["messages"] != server.seen[1]["messages"]
    (again,) = await score([Sample(response="ours", label="theirs")], args, **settings)
    assert again["judge"] == 0.3


async def test_a_judge_of_the_run_keeps_its_own_sampling(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relax_engine.access.policy._installed", AccessPolicy(SecretStr("token"), None, 1024))
    server.answers["/genrm/generate"] = [{"response": "Judgement: Yes"}]
    args = SimpleNamespace(genrm_url=f"{server.url}/genrm/generate", genrm_model_path="judge", api_ssl_certfile=None)
    samples = [Sample(prompt="2+3?", response="five", label="5")]
    assert (await score(samples, args, rm_type="genrm", reward_key="score"))[0]["score"] == 1.0
    assert server.seen[0]["sampling_params"] == {}
