"""Who receives weights: engines over HTTP, and forward-only roles over Ray."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.types import EngineRefusedError
from relax_engine.weight_sync.messages import BucketMeta, GroupAddress


@dataclass(slots=True)
class EngineReceiver:
    """An engine that speaks SGLang's API.

    `begin` is pause(retract) -> begin_weight_update and `commit` is end_weight_update ->
    flush_cache -> continue: without retract and flush, cached keys and values of the old weights
    would be mixed with the new ones. An engine that gave its memory back gets it again first.
    """

    url: str
    timeout_s: float
    resume_memory: bool = False

    @property
    def name(self) -> str:
        """The engine's URL."""
        return self.url

    def answered(self, error: BaseException) -> bool:
        return isinstance(error, EngineRefusedError)

    async def join(self, address: GroupAddress, rank: int) -> None:
        async with EngineClient(self.url, timeout_s=self.timeout_s) as client:
            await client.init_weights_group(address, rank)

    async def leave(self, address: GroupAddress) -> None:
        async with EngineClient(self.url, timeout_s=self.timeout_s) as client:
            await client.destroy_weights_group(address.name)

    async def begin(self) -> None:
        async with EngineClient(self.url, timeout_s=self.timeout_s) as client:
            if self.resume_memory:
                await client.resume_memory()
            await client.pause("retract")
            await client.begin_weight_update()

    async def receive(self, bucket: BucketMeta, address: GroupAddress) -> None:
        async with EngineClient(self.url, timeout_s=self.timeout_s) as client:
            await client.update_weights_from_distributed(bucket, address.name)

    async def commit(self, version: int) -> None:
        async with EngineClient(self.url, timeout_s=self.timeout_s) as client:
            await client.end_weight_update(version)
            await client.flush_cache()
            await client.resume()


@dataclass(slots=True)
class RoleReceiver:
    """A forward-only role (reference, actor_fwd), addressed through its Serve application."""

    name: str
    _handle: Any = field(default=None, repr=False)

    @property
    def handle(self) -> Any:
        """The role's Serve handle, looked up where the receiver is used."""
        if self._handle is None:
            from ray import serve

            self._handle = serve.get_app_handle(self.name)
        return self._handle

    def answered(self, error: BaseException) -> bool:
        from ray.exceptions import RayTaskError

        return isinstance(error, RayTaskError)

    async def join(self, address: GroupAddress, rank: int) -> None:
        await self.handle.join.remote(address, rank)

    async def leave(self, address: GroupAddress) -> None:
        await self.handle.leave.remote(address.name)

    async def begin(self) -> None:
        await self.handle.begin_update.remote()

    async def receive(self, bucket: BucketMeta, address: GroupAddress) -> None:
        await self.handle.receive.remote(bucket)

    async def commit(self, version: int) -> None:
        await self.handle.end_update.remote(version)
