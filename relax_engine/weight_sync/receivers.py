"""Who receives weights: engines over HTTP, and forward-only roles over Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from relax_engine.access.policy import engine_key
from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.types import EngineRefusedError
from relax_engine.weight_sync.messages import BucketMeta, GroupAddress, SharedTensors, Source

_IDLE_S = 1.0


@dataclass(slots=True)
class EngineReceiver:
    """An engine that speaks SGLang's API.

    `begin` is pause(retract) -> begin_weight_update and `commit` is end_weight_update ->
    flush_cache -> continue: without retract and flush, cached keys and values of the old weights
    would be mixed with the new ones.
    """

    url: str
    timeout_s: float
    processes: int = 1
    api_key: SecretStr | None = field(default_factory=engine_key)
    """Taken where the receiver is made: the rank that it is sent to has no access policy."""
    _client: EngineClient | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The engine's URL."""
        return self.url

    @property
    def client(self) -> EngineClient:
        """The client of this engine; it belongs to the event loop that uses it first, until `close`."""
        if self._client is None:
            self._client = EngineClient(self.url, timeout_s=self.timeout_s, idle_s=_IDLE_S, api_key=self.api_key)
        return self._client

    def answered(self, error: BaseException) -> bool:
        return isinstance(error, EngineRefusedError)

    async def join(self, address: GroupAddress, rank: int) -> None:
        await self.client.init_weights_group(address, rank)

    async def leave(self, address: GroupAddress) -> None:
        await self.client.destroy_weights_group(address.name)

    async def begin(self) -> str:
        await self.client.pause("retract")
        return await self.client.begin_weight_update()

    async def receive(self, bucket: BucketMeta, sources: Sequence[Source]) -> None:
        shared = [source.serialized for source in sources if isinstance(source, SharedTensors)]
        if shared:
            await self.client.update_weights_from_tensor(bucket, shared)
        for source in sources:
            if isinstance(source, GroupAddress):
                await self.client.update_weights_from_distributed(bucket, source.name)

    async def pull(self, url: str, version: int) -> None:
        await self.client.update_weights_from_disk(url.removeprefix("file://"), version=version)

    async def commit(self, version: int) -> None:
        await self.client.end_weight_update(version)
        await self.client.flush_cache()
        await self.client.resume()

    async def quarantine(self) -> None:
        await self.client.pause("abort")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None


@dataclass(slots=True)
class RoleReceiver:
    """A forward-only role (reference, actor_fwd), addressed through its Serve application."""

    name: str
    processes: int = 1
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

    async def begin(self) -> str:
        base: str = await self.handle.begin_update.remote()
        return base

    async def receive(self, bucket: BucketMeta, sources: Sequence[Source]) -> None:
        await self.handle.receive.remote(bucket, sources)

    async def pull(self, url: str, version: int) -> None:
        await self.handle.pull.remote(url)

    async def commit(self, version: int) -> None:
        await self.handle.end_update.remote(version)

    async def quarantine(self) -> None:
        """It waits for the next update: a forward pass needs the lock that this one holds."""

    async def close(self) -> None:
        """Its handle needs no closing."""
