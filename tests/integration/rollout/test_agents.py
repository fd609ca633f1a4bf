"""Agents as processes over real engines: what becomes of their sessions, however they end."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from test_continued import make_groups

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.launch import EngineProcess
from relax_engine.rollout.agents.process import SESSION_VARIABLE, AgentCommand
from relax_engine.rollout.agents.rollout import AgentRollout, AgentSettings
from relax_engine.rollout.agents.session import SessionSettings
from relax_engine.rollout.generate import Generator
from relax_engine.rollout.pool import EnginePool
from relax_engine.rollout.sampling import SamplingSettings
from relax_engine.types import Sample, SampleStatus

HALF = tuple(range(3, 131))
"""Tokens of which each ends an answer: about every second one that a random model samples."""
PROGRAM = Path(__file__).with_name("agent_program.py")
SAMPLING = SamplingSettings(max_new_tokens=12, stop_token_ids=HALF, max_context_tokens=240, seed=5)


def settings(tokenizer: Any, **changes: Any) -> AgentSettings:
    command = AgentCommand(f"python -S -E {PROGRAM}")
    values: dict[str, Any] = {"timeout_s": 30.0, "attempts": 3, "concurrency": 8}
    return AgentSettings(
        command, session=SessionSettings(tokenizer, SAMPLING, {}, "hermes", "none"), **values | changes
    )


def prompts(tokenizer: Any, count: int) -> list[list[Sample]]:
    """Groups of two samples with questions."""
    groups = make_groups(tokenizer, count)
    for sample in (sample for group in groups for sample in group):
        sample.prompt = f"{sample.group_index} + 1 ="
    return groups


def left_processes() -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if SESSION_VARIABLE in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


Run = Callable[..., Any]


@pytest.fixture
async def run(engines: list[EngineProcess], tokenizer: Any) -> Run:
    """Runs groups of two samples whose agents behave as told, one behaviour per sample."""

    async def run(
        behaviours: list[str], metadata: Any = None, **changes: Any
    ) -> tuple[list[list[Sample]], Counter[str]]:
        groups = prompts(tokenizer, len(behaviours) // 2)
        for sample, behaviour in zip((s for group in groups for s in group), behaviours, strict=True):
            sample.metadata = {"behaviour": behaviour, **(metadata or {})}
        async with (
            EnginePool([engine.url for engine in engines], timeout_s=60.0) as pool,
            AgentRollout(settings(tokenizer, **changes)) as agents,
        ):
            await Generator(pool, SAMPLING, custom=agents).generate(groups)
            counts = Counter(agents.counts)
        assert left_processes() == []
        return groups, counts

    return run


async def test_a_session_becomes_a_sample(run: Run, engines: list[EngineProcess], tokenizer: Any) -> None:
    ((one, other),), counts = await run(["talk", "reward"])
    assert counts == {"sessions": 2, "completed": 2}
    assert (one.reward, other.reward, other.metadata["steps"]) == (None, 0.25, 2)
    for sample in (one, other):
        assert sample.status in (SampleStatus.COMPLETED, SampleStatus.TRUNCATED)
        assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
        shown = [t for t, mask in zip(sample.rollout_tokens, sample.loss_mask, strict=True) if not mask]
        assert tokenizer.decode(shown) == "<|im_end|>\n<|im_start|>user\nturn 0<|im_end|>\n<|im_start|>assistant\n"
        assert tokenizer.decode(sample.tokens[: sample.prompt_length]).endswith("<|im_start|>assistant\n")
    assert one.rollout_tokens != other.rollout_tokens
    # Each is the log-prob of its token behind all that came before.
    async with EngineClient(engines[0].url, timeout_s=60.0) as client:
        (scores,) = await client.score([one.tokens])
    trained = np.flatnonzero(one.loss_mask)
    expected = scores[one.prompt_length - 1 :][trained]
    np.testing.assert_allclose(np.array(one.rollout_log_probs)[trained], expected, atol=1e-4)


async def test_failures_are_tried_again_and_then_leave_out_the_group(run: Run, tmp_path: Path) -> None:
    groups, counts = await run(["talk", "fail once", "talk", "fail"], {"flag": str(tmp_path / "flag")})
    assert {sample.status for sample in groups[1]} == {SampleStatus.FAILED}
    assert all(sample.rollout_tokens for sample in groups[0])
    assert (counts["failed"], counts["retried"], counts["groups_dropped"]) == (4, 3, 1)
    assert counts["sessions"] == 7 == counts["failed"] + counts["completed"] + counts["cut_off"]
    groups, counts = await run(["talk", "fail"], evaluation=True, reward_key="score", attempts=1)
    assert [sample.reward for sample in groups[0]] == [None, {"score": 0.0}]


async def test_branches_must_be_named(run: Run) -> None:
    _, counts = await run(["talk", "branches"], attempts=1)
    assert counts["failed"] == 1
    _, counts = await run(["talk", "silent"], attempts=1)
    assert counts["failed"] == 1
    ((one, main, helper),), counts = await run(["talk", "exports"])
    assert (main.index, helper.index, one.index) == (1, 1, 0)
    assert [sample.metadata["export"] for sample in (one, main, helper)] == ["main", "main", "helper"]
    assert (main.metadata["kind"], helper.metadata["kind"]) == (1, 2)
    assert main.tokens != helper.tokens


async def test_agents_that_hang_are_ended_with_their_children(run: Run) -> None:
    started = time.monotonic()
    _, counts = await run(["talk", "hang"], attempts=1, timeout_s=1.5)
    assert (counts["timed_out"], counts["groups_dropped"]) == (1, 1)
    assert time.monotonic() - started < 12


async def test_agents_that_were_started_early_wait(engines: list[EngineProcess], tokenizer: Any) -> None:
    groups = prompts(tokenizer, 1)
    async with (
        EnginePool([engines[0].url], timeout_s=60.0) as pool,
        AgentRollout(settings(tokenizer)) as agents,
    ):
        await agents.prelaunch(prompts(tokenizer, 2))
        assert len(left_processes()) == 4
        deadline = time.monotonic() + 20
        while sum(session.requests for session in agents.gateway.sessions.values()) < 4:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert all(not session.forest.nodes for session in agents.gateway.sessions.values())
        await Generator(pool, SAMPLING, custom=agents).generate(groups)
        assert agents.counts == {"prelaunched": 4, "sessions": 2, "completed": 2}
        assert len(left_processes()) == 2
    assert left_processes() == []
    assert all(sample.rollout_tokens for sample in groups[0])


@pytest.mark.long
async def test_two_hundred_sessions_are_all_accounted_for(run: Run) -> None:
    """10 % fail, 5 % hang, 5 % are killed, every time they are tried."""
    behaviours = ["fail"] * 20 + ["hang"] * 10 + ["killed"] * 10 + ["talk"] * 160
    random.Random(3).shuffle(behaviours)
    groups, counts = await run(behaviours, attempts=2, timeout_s=30.0, concurrency=16)
    endings = ("completed", "failed", "timed_out", "killed", "cut_off")
    assert counts["sessions"] == sum(counts[name] for name in endings)
    bad = [any(s.metadata["behaviour"] != "talk" for s in group) for group in groups]
    print(dict(counts), "of", len(groups), "groups", sum(bad), "left out")
    for group, is_bad in zip(groups, bad, strict=True):
        expected = {SampleStatus.FAILED} if is_bad else {SampleStatus.COMPLETED, SampleStatus.TRUNCATED}
        assert {sample.status for sample in group} <= expected
        assert is_bad or all(sample.rollout_tokens and sum(sample.loss_mask) for sample in group)
    assert counts["groups_dropped"] == sum(bad)
    assert all(counts[name] > 0 for name in ("failed", "timed_out", "killed"))
