"""Engines that are added to a group: a place of their own, and what their end means."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import ray

from relax_engine.components.engine_group import EngineEvents, EngineGroup
from relax_engine.components.engine_host import EngineEnd
from relax_engine.core.cluster import ClusterError
from relax_engine.core.cluster import ray_cluster as connected
from relax_engine.core.placement import Slot, place, place_more


def free_cpus() -> float:
    return float(ray.available_resources().get("CPU", 0.0))


async def test_an_added_engine_that_is_told_to_end_gives_its_place_back(
    ray_cluster: None, tiny: Any, tmp_path: Path
) -> None:
    with connected(None) as cluster:
        placement = place({"rollout": 1}, (), cluster, timeout_s=60)
    (slot,) = placement.slots["rollout"]
    group = EngineGroup(tiny.config(tmp_path), [slot])
    lost: list[str] = []
    left: asyncio.Future[tuple[str, EngineEnd]] = asyncio.get_running_loop().create_future()

    async def started(url: str, gone: str) -> None:
        raise AssertionError(f"{gone} was started again")

    try:
        await group.start(60)
        group.keep_running(
            EngineEvents(lambda url, _: lost.append(url), started, lambda url, end: left.set_result((url, end))),
            check_health=False,
        )
        before = free_cpus()
        url = await group.launch(60)
        assert free_cpus() == before - slot.num_cpus
        group.attend(url)
        os.kill(group.details(url)["pid"], signal.SIGTERM)
        gone, end = await asyncio.wait_for(left, 30)
        assert (gone, lost, end.evicted) == (url, [url], True)
        await group.end(url, 10)
        assert len(group.urls) == 1
        deadline = time.monotonic() + 10
        while free_cpus() != before and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        assert free_cpus() == before
        with pytest.raises(ClusterError, match=r"no room for an engine within 0\.5 s: wanted {'CPU': 1000\.0}"):
            await place_more(Slot(slot.group, 0, 1000.0, 0.0), 0.5)
    finally:
        await group.close()
        placement.release()
