"""Engines that die while they are started."""

import asyncio
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from relax_engine.backends.engines.client import EngineClient
from relax_engine.components.engine_group import EngineGroup
from relax_engine.core.cluster import ray_cluster as connected
from relax_engine.core.placement import place


def kill_engine(model: Path, seconds: float) -> int:
    """SIGKILL the engine of a model as soon as its process is there; returns its id."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for process in psutil.process_iter():
            try:
                line = process.cmdline()
                if "relax_engine.backends.engines.local" in line and str(model) in line:
                    process.kill()
                    return process.pid
            except psutil.Error:
                continue
        time.sleep(0.02)
    raise AssertionError(f"no engine of {model} within {seconds} s")


@pytest.mark.long
async def test_an_engine_that_is_killed_while_it_starts_is_started_again(
    ray_cluster: None, tiny: Any, tmp_path: Path
) -> None:
    config = tiny.config(tmp_path, use_fault_tolerance=True, save=str(tmp_path / "ckpt"))
    with connected(None) as cluster:
        placement = place({"rollout": 1}, (), cluster, timeout_s=60)
    group = EngineGroup(config, placement.slots["rollout"])
    try:
        starting = asyncio.create_task(group.start(60))
        killed = await asyncio.to_thread(kill_engine, tiny.model, 60)
        (url,) = await starting
        assert group.processes["engine 0"] != killed
        async with EngineClient(url, timeout_s=10) as client:
            await client.health(deadline_s=10)
    finally:
        await group.close()
        placement.release()
