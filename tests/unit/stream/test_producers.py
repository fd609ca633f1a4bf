"""A producer that takes over from a dead one, as the controller sees it."""

import asyncio

import pytest

from relax_engine.stream.controller import StreamController
from relax_engine.stream.errors import StreamError


async def test_what_a_dead_producer_waits_for_goes_to_its_successor():
    controller = StreamController([], row_budget=100, byte_budget=1000, gate={"max_staleness": 0, "groups_per_step": 2})
    assert await controller.admit(2, "first", 5.0) == [0, 1]
    dead = asyncio.create_task(controller.admit(2, "second", 5.0))
    await asyncio.sleep(0)
    state = await controller.withdraw()
    assert (state.next_group, state.pending, state.sealed, state.accepted) == (2, [0, 1], None, {})
    with pytest.raises(StreamError, match="another producer has taken over"):
        await dead
    assert await controller.admit(2, "third", 5.0) == [0, 1]
    assert (await controller.stats()).groups_occupied == 2


async def test_a_restarted_controller_answers_as_the_dead_one_did(tmp_path):
    gate = {"max_staleness": 0, "groups_per_step": 2}
    first = StreamController([], row_budget=100, byte_budget=1000, gate=gate, journal=tmp_path)
    await first.admit(2, "a", 5.0)
    await first.record("filtered", 4, [0], "f")
    await first.recover_gate(3, 10, [8])
    first._journal._file.close()
    second = StreamController([], row_budget=100, byte_budget=1000, gate=gate, journal=tmp_path)
    await second.record("filtered", 4, [0], "f")  # its answer was lost
    stats = await second.stats()
    assert (stats.produced, stats.filtered, stats.weight_version) == (4, 4, 3)
    assert await second.admit(2, "b", 5.0) == [8, 10]
    second._journal._file.close()
