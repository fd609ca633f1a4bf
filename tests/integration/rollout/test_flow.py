"""Groups from prompts to partitions on real engines: over-sampling, filters, what is left over, and a resume."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from relax_engine.backends.engines.launch import EngineProcess
from relax_engine.rollout.admission import AdmissionGate
from relax_engine.rollout.buffer import GroupBuffer, unpack_groups
from relax_engine.rollout.flow import GroupFlow
from relax_engine.rollout.flow_settings import FlowHooks, FlowSettings
from relax_engine.rollout.generate import Generator
from relax_engine.rollout.partial import is_finished, oldest_version
from relax_engine.rollout.pool import EnginePool, RolloutError
from relax_engine.rollout.sampling import SamplingSettings
from relax_engine.types import Sample, SampleGroup

SIZE = 2
GROUPS = 3
SETTINGS = FlowSettings(
    groups=GROUPS,
    surplus=0,
    ahead=False,
    batched=False,
    partial=False,
    mask_off_policy=False,
    max_staleness=0,
    max_attempts=3,
    deadline_s=30.0,
)


class Surroundings:
    """A real gate and pool around one flow; rewards are response lengths, and what is given up is written down."""

    def __init__(self, urls: Sequence[str], tokenizer: Any, settings: FlowSettings, **options: Any) -> None:
        self.gate = AdmissionGate(
            max_staleness=settings.max_staleness,
            groups_per_step=settings.groups,
            over_sampling=settings.groups + settings.surplus,
        )
        self.tokenizer, self.given_up = tokenizer, []
        self.pool = EnginePool(urls, timeout_s=30.0)
        self.starts: list[int] = []
        generator = Generator(
            self.pool,
            SamplingSettings(max_new_tokens=options.pop("length", 40), seed=1),
            tokenizer=tokenizer,
            on_engine=lambda numbers, _: self.starts.extend(numbers),
        )
        hooks = FlowHooks(self.admit, self.prompt, self.score, self.give_up, lambda name, start: None)
        self.flow = GroupFlow(settings, hooks, generator, GroupBuffer(), **options)

    async def admit(self, count: int) -> list[int]:
        while (numbers := self.gate.try_admit(count, 0.0)) is None:
            await asyncio.sleep(0.01)
        return numbers

    async def prompt(self, number: int) -> SampleGroup:
        tokens = self.tokenizer.encode(f"{number} + 1 = ")
        return [Sample(group_index=number, index=number * SIZE + i, tokens=list(tokens)) for i in range(SIZE)]

    async def score(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            sample.reward = float(sample.response_length)

    async def give_up(self, groups: Sequence[SampleGroup]) -> None:
        self.given_up += [group[0].group_index for group in groups]
        self.gate.release([group[0].group_index for group in groups], "filtered")

    async def train(self, rollout_id: int) -> list[SampleGroup]:
        """One partition, trained at once: its slots are free and the next weights are there."""
        groups = [group async for group in self.flow.partition(rollout_id)]
        self.gate.release([group[0].group_index for group in groups], "trained")
        self.gate.set_version(rollout_id + 1)
        return groups


@pytest.fixture
async def surround(engines: list[EngineProcess], tokenizer: Any) -> AsyncIterator[Any]:
    made: list[Surroundings] = []

    def make(settings: FlowSettings, **options: Any) -> Surroundings:
        made.append(Surroundings([engine.url for engine in engines], tokenizer, settings, **options))
        return made[-1]

    yield make
    for one in made:
        await one.flow.close()
        await one.pool.close()


def numbers(groups: Sequence[SampleGroup]) -> list[int]:
    return [group[0].group_index for group in groups]


async def test_without_over_sampling_partitions_follow_the_prompts(surround: Any) -> None:
    """Every group starts once, and exactly the groups that are needed start (slime#452)."""
    for settings in (SETTINGS, replace(SETTINGS, batched=True), replace(SETTINGS, ahead=True)):
        around = surround(settings)
        around.flow.start(2)
        assert [numbers(await around.train(r)) for r in range(2)] == [[0, 1, 2], [3, 4, 5]]
        assert sorted(around.starts) == [0, 1, 2, 3, 4, 5]
        assert around.flow.state() == {"next_group": 6, "pending": [], "groups": []}


def long_first(args: Any, samples: Sequence[Sample]) -> bool:
    """Refuses two groups of every three, once each."""
    return samples[0].group_index % 3 == 2


async def test_a_filtered_group_is_replaced_and_gives_its_slot_back(surround: Any) -> None:
    for settings in (SETTINGS, replace(SETTINGS, ahead=True), replace(SETTINGS, batched=True)):
        around = surround(settings, sample_filter=long_first)
        around.flow.start(2)
        assert numbers(await around.train(0)) == [2, 5, 8]
        assert set(around.given_up) >= {0, 1, 3, 4, 6, 7}
        assert around.flow.counts["filtered/long_first"] == len(around.given_up)
        assert numbers(await around.train(1)) == [11, 14, 17]
        assert around.gate.released["filtered"] == len(around.given_up)
        assert around.gate.occupied == around.gate.admitted - 6 - len(around.given_up)


async def test_a_filter_that_keeps_too_little_ends_the_rollout(surround: Any) -> None:
    class Args:
        dynamic_sampling_filter_path = "mine.strict"

    around = surround(SETTINGS, sample_filter=lambda args, samples: False, args=Args(), length=4)
    around.flow.start(1)
    with pytest.raises(
        RolloutError, match=r"rollout 0: .*mine\.strict left out (9|10|11) groups, 3 rollouts.*max-attem"
    ):
        await around.train(0)


async def test_what_over_sampling_leaves_begins_again_on_policy(surround: Any) -> None:
    """Nothing of the old weights is kept: the next partition's first versions are the new ones, numbers stay."""
    around = surround(replace(SETTINGS, surplus=3))
    around.flow.start(2)
    first = await around.train(0)
    left = around.flow.state()["pending"] or list(range(3, 6))
    assert len(first) == GROUPS
    assert around.gate.occupied == 3
    await around.flow.weights_arrived(1)
    second = await around.train(1)
    assert around.gate.occupied == 3
    assert not set(numbers(first)) & set(numbers(second))
    assert set(left) & set(numbers(second))
    assert all(is_finished(sample) and sample.abort_count <= 2 for group in second for sample in group)


async def test_a_resume_has_the_same_groups_with_what_was_sampled_of_them(surround: Any, tokenizer: Any) -> None:
    """Cut off at the end of a partition, checkpointed as JSON, continued elsewhere: equal to the run that went on, and
    nothing that was trained is generated again to get there (trl#5863)."""
    settings = replace(SETTINGS, surplus=3, partial=True, max_staleness=2)
    around = surround(settings, length=150)
    around.flow.start(2)
    trained = numbers(await around.train(0))
    state = json.loads(json.dumps(around.flow.state()))
    assert len(state["pending"]) == 3
    waiting = around.flow.buffer.groups
    assert [group[0].group_index for group in waiting] == state["pending"]
    begun = {group[0].group_index: [list(sample.tokens) for sample in group] for group in waiting}
    assert sum(sample.response_length for group in waiting for sample in group) > 0

    resumed = surround(settings, length=150)
    resumed.gate.recover(1, next_group=state["next_group"], pending=state["pending"])
    await resumed.flow.weights_arrived(1)
    await resumed.flow.restore(state["next_group"], state["pending"], unpack_groups(state["groups"]))
    assert resumed.flow.buffer.groups == waiting
    assert resumed.gate.occupied == 3
    assert resumed.starts == []
    resumed.flow.start(1)
    await around.flow.weights_arrived(1)
    on, again = await around.train(1), await resumed.train(1)
    assert not set(trained) & set(resumed.starts)
    found = {sample.index: sample for group in on for sample in group}
    for group in again:
        for sample in group:
            if sample.index in found:
                assert sample.rollout_tokens == found[sample.index].rollout_tokens
            if sample.group_index in begun:
                assert (
                    sample.tokens[: len(begun[sample.group_index][sample.index % SIZE])]
                    == (begun[sample.group_index][sample.index % SIZE])
                )


async def test_what_is_too_old_begins_again_and_a_mask_keeps_it_out_of_the_loss(surround: Any) -> None:
    """The engines' weights are called 0 here throughout, so a later version makes every token old."""
    around = surround(replace(SETTINGS, surplus=3, partial=True, max_staleness=0), length=150)
    around.flow.start(2)
    await around.train(0)
    await around.flow.weights_arrived(1)
    await around.train(1)
    assert around.flow.counts["begun_again"] >= 1
    assert around.flow.counts["continued"] == 0
    assert oldest_version(around.flow.seen[-1]) == 0


async def test_in_flight_requests_are_cut_for_new_weights_and_go_on(surround: Any) -> None:
    whole = surround(replace(SETTINGS, ahead=True, max_staleness=1), length=200)
    whole.flow.start(2)
    expected = [await whole.train(r) for r in range(2)]
    around = surround(replace(SETTINGS, ahead=True, partial=True, max_staleness=1), length=200)
    around.flow.start(2)
    trained = asyncio.create_task(around.train(0))
    await asyncio.sleep(0.08)
    await around.flow.cut_for_weights()
    await asyncio.sleep(0.1)
    assert around.flow.counts["continued"] >= 1
    await around.flow.weights_arrived(0)
    groups = [await trained, await around.train(1)]
    assert sorted(n for part in groups for n in numbers(part)) == list(range(6))
    tokens = {s.index: s.rollout_tokens for part in expected for group in part for s in group}
    for part in groups:
        for group in part:
            for sample in group:
                assert sample.rollout_tokens == tokens[sample.index]
