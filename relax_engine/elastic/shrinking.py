"""Carrying a scale-in request out: drain, leave, end.

What lives here: the order of the three for one request. What does not: single engines (`fleet.py`), and which engines
leave (`scaler.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from relax_engine.elastic.failures import FencedError, bounded
from relax_engine.elastic.fleet import EngineFleet
from relax_engine.elastic.requests import ScaleIn
from relax_engine.elastic.settings import ElasticSettings
from relax_engine.elastic.states import ScaleInStatus as In

logger = logging.getLogger(__name__)


async def shrink(
    fleet: EngineFleet, settings: ElasticSettings, request: ScaleIn, changed: Callable[[ScaleIn], None]
) -> None:
    """Remove the selected engines.

    Engines that had not left when something failed stay and serve on. Does not raise: the request says what failed.
    """

    def advance(status: In) -> None:
        request.advance(status)
        changed(request)

    selected = request.selected_engines
    try:
        if not request.force:
            advance(In.DRAINING)
            await fleet.drain(selected, min(settings.drain_timeout_s, request.left()))
        await fleet.cut(selected)
        if not await fleet.fence.wait(request.left()):
            raise FencedError("a weight update did not end before the deadline of the request")
        advance(In.REMOVING)
        for url in selected:
            await fleet.leave(url)
            request.removed_engines.append(url)
        ends = [fleet.end(url, settings.shutdown_timeout_s) for url in selected]
        for url, answer in zip(selected, await asyncio.gather(*ends, return_exceptions=True), strict=True):
            if isinstance(answer, BaseException):
                logger.warning("engine %s has left, but was not ended: %s", url, answer)
                request.failed_engines[url] = bounded(answer)
        if request.failed_engines:
            raise RuntimeError(f"not ended: {request.failed_engines}")
    except Exception as error:  # noqa: BLE001 - the request says it, and nobody waits for this task
        await fleet.keep([url for url in selected if url not in request.removed_engines])
        request.message = bounded(error)
        advance(In.FAILED)
        return
    request.message = f"{len(selected)} engines left"
    advance(In.COMPLETED)
