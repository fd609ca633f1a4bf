"""Engines that come late read the published weights from the store, without the trainer and without the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from relax_engine.utils.ramp import Ramp
from relax_engine.weight_sync.calls import Deadline, tell_all
from relax_engine.weight_sync.messages import Receiver, SyncReport
from relax_engine.weight_sync.store import WeightStoreError, latest_version, read_version


async def pull_newest(store: str, receivers: Sequence[Receiver], version: int, timeout_s: float) -> SyncReport:
    """Have every receiver adopt the newest version of the store at `store`, which must be `version`.

    More and more at a time (`Ramp`): each takes a connection. One that fails is in the report's `quarantined`, all of
    them when the version cannot be had.
    """
    started = time.monotonic()
    deadline, ramp = Deadline(timeout_s), Ramp()

    async def pull(receiver: Receiver) -> None:
        async with ramp.turn():
            await receiver.begin()
            await receiver.pull(url, version)
            await receiver.commit(version)
            await receiver.close()

    try:
        url = await asyncio.to_thread(_directory, store, version)
    except WeightStoreError as error:
        return SyncReport(version, quarantined={receiver.name: str(error) for receiver in receivers})
    errors = await tell_all(receivers, pull, timeout_s)
    await tell_all(receivers, lambda receiver: receiver.close(), timeout_s)
    return SyncReport(
        version,
        committed=[receiver.name for receiver in receivers if receiver.name not in errors],
        quarantined={name: deadline.reason(error) for name, error in errors.items()},
        seconds=time.monotonic() - started,
        steps=ramp.steps,
    )


def _directory(store: str, version: int) -> str:
    """URL of the newest version at `store`.

    Raises:
        WeightStoreError: there is none, it cannot be read, or it is another one.
    """
    url = latest_version(store)
    if url is None:
        raise WeightStoreError(f"there are no weights at {store} yet")
    stored = read_version(url, {})[0].version
    if stored != version:
        raise WeightStoreError(f"{store} has version {stored} of the weights, and engines hold {version}")
    return url
