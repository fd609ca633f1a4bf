"""The judge as a role: an engine that joins serves at once, answers chats, and leaves; no Ray is needed for that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import HTTPException

from relax_engine.backends.engines.launch import EngineProcess, launch_engine
from relax_engine.components.genrm import Genrm, Question
from relax_engine.components.role import RoleContext
from relax_engine.config import RunConfig
from relax_engine.rewards.judge import grade_prompt
from relax_engine.types import Sample

WAIT_S = 30.0


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, EngineProcess]]:
    """A random model with room for a judge's prompt."""
    from examples.tiny_math.make_model import make_model

    path = make_model(tmp_path_factory.mktemp("judge") / "model")
    facts = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(facts | {"max_position_embeddings": 1024}))
    with launch_engine(path) as engine:
        yield path, engine


async def ended(request: Any) -> str:
    async with asyncio.timeout(WAIT_S):
        while not request.finished:
            await asyncio.sleep(0.01)
    return str(request.status)


async def test_an_engine_joins_judges_and_leaves(judge: tuple[Path, EngineProcess], tmp_path: Path) -> None:
    model, engine = judge
    config = RunConfig.from_flat(
        hf_checkpoint=str(model),
        genrm_model_path=str(model),
        genrm_sampling_config={"max_response_len": 4, "temperature": 0.0},
        weight_sync_transport="object_store",
        weight_sync_url=str(tmp_path),
        scale_weight_sync_precheck=False,  # there is no other engine to compare with
    )
    role = Genrm(RoleContext(config, (), cast(Any, None), str(tmp_path), 0, 1))
    await role.setup()
    scaler = role.elasticity.scaler("default")
    assert await ended(scaler.scale_out(None, [engine.url], WAIT_S)) == "ACTIVE"
    sample = Sample(prompt="What is 2 + 2?", label="4")
    sample.response = "It is 4."
    asked = Question(messages=grade_prompt(sample))
    first, again = await role.generate(asked), await role.generate(asked)
    assert first.response == again.response
    longer = await role.generate(asked.model_copy(update={"sampling_params": {"max_new_tokens": 12}}))
    assert longer.response.startswith(first.response)
    assert len(longer.response) > len(first.response)
    with pytest.raises(HTTPException, match="above the context length") as refused:
        await role.generate(Question(messages=[{"role": "user", "content": "long " * 1000}]))
    assert refused.value.status_code == 400
    assert await ended(await scaler.scale_in(None, [engine.url])) == "COMPLETED"
    with pytest.raises(HTTPException, match="no engine can serve") as absent:
        await role.generate(asked)
    assert absent.value.status_code == 503
    # The actor, which sends engines the policy, must not hear of the judge's.
    assert "engine_started" not in {event["kind"] for event in role.drain_events()}
    await role.close()
