"""Generation and rollout functions of a user file, against real engines."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import user_rollout
from test_continued import SAMPLING, flat, make_groups

from relax_engine.backends.engines.launch import EngineProcess
from relax_engine.config.flat import FlatView
from relax_engine.rollout.admission import AdmissionGate
from relax_engine.rollout.buffer import GroupBuffer
from relax_engine.rollout.custom_generate import CustomGenerate
from relax_engine.rollout.custom_rollout import CustomRollout, RolloutFunction, check_evaluation
from relax_engine.rollout.flow_settings import FlowHooks
from relax_engine.rollout.generate import Generator
from relax_engine.rollout.pool import EnginePool, RolloutError
from relax_engine.types import SampleStatus

BRIDGE = [5, 6]
ARGS = FlatView({"bridge_tokens": BRIDGE, "rollout_batch_size": 2, "wait_timeout": 20.0})


@pytest.fixture
async def pool(engines: list[EngineProcess]) -> AsyncIterator[EnginePool]:
    async with EnginePool([engine.url for engine in engines], timeout_s=30.0) as pool:
        yield pool


def custom(name: str) -> CustomGenerate:
    return CustomGenerate(f"{user_rollout.HERE}:{name}", ARGS, version=lambda: 3, evaluation=False)


async def test_a_generation_function_fills_its_samples(pool: EnginePool, tokenizer: Any) -> None:
    groups = make_groups(tokenizer, 2)
    prompts = [list(sample.tokens) for sample in flat(groups)]
    await Generator(pool, SAMPLING, custom=custom("generate")).generate(groups)
    for sample, prompt in zip(flat(groups), prompts, strict=True):
        assert sample.tokens == [*prompt, *sample.rollout_tokens]
        assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
        assert sample.loss_mask.count(0) == len(BRIDGE)
        assert sample.status in (SampleStatus.COMPLETED, SampleStatus.TRUNCATED)
        first, second = sample.weight_versions
        assert (first.version, first.start, second.end) == (0, 0, sample.response_length)
        assert second.start - first.end == len(BRIDGE)
        assert sample.rollout_tokens[first.end : second.start] == BRIDGE
        assert sample.metadata == {"evaluation": False}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("careless", r"user_rollout\.py:careless on sample \d+ of group 0 left no rollout_log_probs"),
        ("broken", r"user_rollout\.py:broken failed on sample \d+ of group 0: KeyError: 'answer'"),
    ],
)
async def test_a_function_that_breaks_its_contract_is_named(
    pool: EnginePool, tokenizer: Any, name: str, message: str
) -> None:
    with pytest.raises(ExceptionGroup) as errors:
        await Generator(pool, SAMPLING, custom=custom(name)).generate(make_groups(tokenizer, 1))
    assert errors.group_contains(RolloutError, match=message)
    assert len(pool.usable()) == 2


async def test_a_rollout_function_fills_partitions(pool: EnginePool, tokenizer: Any) -> None:
    gate = AdmissionGate(max_staleness=1, groups_per_step=2)
    given_up: list[int] = []

    async def admit(count: int) -> list[int]:
        return gate.try_admit(count, 0.0) or []

    async def prompt(number: int) -> Any:
        return [
            sample for group in make_groups(tokenizer, number + 1) for sample in group if sample.group_index == number
        ]

    async def score(samples: Any) -> None:
        assert samples == []

    async def give_up(groups: Any) -> None:
        given_up.extend(group[0].group_index for group in groups)

    function = RolloutFunction(f"{user_rollout.HERE}:generate_rollout", pool, ARGS, SimpleNamespace())
    flow = CustomRollout(function, FlowHooks(admit, prompt, score, give_up, lambda *_: None), GroupBuffer())
    first = [group async for group in flow.partition(0)]
    assert [group[0].group_index for group in first] == [0, 1]
    assert flow.counts == {"taken": 3}
    # The group that was put back is unbegun and comes anyway.
    assert flow.state() == {"next_group": 2, "pending": [], "groups": []}
    assert [(span.version, span.start, span.end) for span in first[0][0].weight_versions] == [(0, 0, 1)]
    gate.release([0, 1], "trained")
    await flow.weights_arrived(1)
    second = [group async for group in flow.partition(1)]
    assert [group[0].group_index for group in second] == [2, 3]
    assert second[0][0].weight_versions[0].version == 1
    assert (given_up, gate.occupied) == ([], 3)


async def test_an_evaluation_function_reports_per_data_set(pool: EnginePool) -> None:
    function = RolloutFunction(f"{user_rollout.HERE}:generate_rollout", pool, ARGS, None)
    output = await function.call(4, None, evaluation=True)
    assert check_evaluation(function.path, output) == {"mine": {"rewards": [0.5, 1.0]}}
    assert output.metrics == {"extra": 4.0}
    with pytest.raises(RolloutError, match="2 rewards and 1 samples"):
        check_evaluation("f", {"mine": {"rewards": [1, 2], "samples": [None]}})
