"""Starting the engines of a run, each on its device, and keeping their addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import ray

from relax_engine.config import RunConfig
from relax_engine.core.placement import Slot


class EngineHost:
    """A Ray actor that holds one engine process on the node where the placement put it."""

    def __init__(self, options: dict[str, Any]) -> None:
        from relax_engine.backends.engines.launch import launch_engine

        self._engine = launch_engine(host=ray.util.get_node_ip_address(), **options)

    def url(self) -> str:
        """Where the engine answers."""
        return self._engine.url

    def close(self) -> None:
        """End the engine process."""
        self._engine.close()


class EngineGroup:
    """The engines that a role owns: of the model that is trained, or of another one (`model_path`)."""

    def __init__(self, config: RunConfig, slots: Sequence[Slot], model_path: str | None = None) -> None:
        flat = config.flat
        options = {
            "model_path": model_path or flat.hf_checkpoint,
            "max_running_requests": flat.sglang_server_concurrency,
            "context_length": flat.rollout_max_context_len,
            "random_seed": flat.rollout_seed,
            "timeout_s": flat.rollout_engine_init_timeout,
            "extra_args": flat.sglang_args,
            "weight_store": flat.weight_sync_url if flat.weight_sync_transport == "object_store" else None,
        }
        self._hosts: list[Any] = [
            ray.remote(EngineHost).options(**slot.actor_options(), max_concurrency=2).remote(options) for slot in slots
        ]
        self.urls: list[str] = []

    async def start(self, timeout_s: float) -> list[str]:
        """URLs of all engines, once each answers; the first failure is raised with the engine's log."""
        self.urls = list(
            await asyncio.wait_for(asyncio.gather(*(host.url.remote() for host in self._hosts)), timeout_s)
        )
        return self.urls

    async def close(self) -> None:
        """End all engines."""
        await asyncio.wait([asyncio.ensure_future(host.close.remote()) for host in self._hosts], timeout=10)
        for host in self._hosts:
            ray.kill(host)
