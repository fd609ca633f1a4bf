"""Calling receivers together: answers in order, who is blamed, and how ranks are counted."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from relax_engine.weight_sync.calls import Deadline, ReceiversFailedError, call_all, tell_all
from relax_engine.weight_sync.messages import GroupAddress, WeightSyncError
from relax_engine.weight_sync.receivers import EngineReceiver
from relax_engine.weight_sync.sender import WeightSender
from relax_engine.weight_sync.transports.broadcast import Broadcast


class Scripted(EngineReceiver):
    """A receiver of which a test says what it does; it answers with ValueErrors."""

    def __init__(self, name: str, act: Callable[[], Awaitable[str]] | None = None, processes: int = 1) -> None:
        super().__init__(name, 5.0, processes=processes)
        self.act = act
        self.joined: list[tuple[int, int]] = []

    def answered(self, error: BaseException) -> bool:
        return isinstance(error, ValueError)

    async def begin(self) -> str:
        return await self.act() if self.act else ""

    async def join(self, address: GroupAddress, rank: int) -> None:
        self.joined.append((rank, address.world_size))
        raise ValueError("not today")

    async def quarantine(self) -> None: ...


async def after(seconds: float, answer: str) -> str:
    await asyncio.sleep(seconds)
    return answer


async def refuse() -> str:
    raise ValueError("refused")


async def die() -> str:
    raise ConnectionError("gone")


async def begin(*receivers: Scripted, together: bool = False, seconds: float = 5.0) -> list[str]:
    return await call_all(receivers, lambda receiver: receiver.begin(), Deadline(seconds), together=together)


async def test_answers_come_in_the_order_of_the_receivers() -> None:
    slow, quick = Scripted("a", lambda: after(0.05, "a")), Scripted("b", lambda: after(0.0, "b"))
    assert await begin(slow, quick) == ["a", "b"]


async def test_those_that_do_not_answer_are_blamed_before_those_that_do() -> None:
    with pytest.raises(ReceiversFailedError) as failed:
        await begin(Scripted("refuses", refuse), Scripted("dies", die), Scripted("good", lambda: after(0, "")))
    assert list(failed.value.errors) == ["dies"]
    with pytest.raises(ReceiversFailedError) as failed:
        await begin(Scripted("refuses", refuse), Scripted("good", lambda: after(0, "")))
    assert list(failed.value.errors) == ["refuses"]


async def test_a_receiver_that_is_silent_misses_the_deadline() -> None:
    deadline = Deadline(0.1)
    with pytest.raises(ReceiversFailedError) as failed:
        await call_all([Scripted("silent", lambda: after(9, ""))], lambda receiver: receiver.begin(), deadline)
    assert deadline.reason(failed.value.errors["silent"]) == "no answer within 0.1 s"
    assert deadline.left() == 0


async def test_together_the_first_failure_ends_the_wait() -> None:
    started = time.monotonic()
    with pytest.raises(ReceiversFailedError) as failed:
        await begin(Scripted("refuses", refuse), Scripted("waits", lambda: after(9, "")), together=True, seconds=20)
    assert list(failed.value.errors) == ["refuses"]
    assert time.monotonic() - started < 8


async def test_telling_does_not_care_what_becomes_of_it() -> None:
    async def tell(receiver: Scripted) -> None:
        await receiver.begin()

    receivers = [Scripted("good", lambda: after(0, "")), Scripted("dies", die), Scripted("slow", lambda: after(9, ""))]
    errors = await tell_all(receivers, tell, 0.5)
    assert {name: type(error) for name, error in errors.items()} == {"dies": ConnectionError, "slow": TimeoutError}


async def test_every_process_of_a_receiver_has_a_rank() -> None:
    one, three, last = Scripted("one"), Scripted("three", processes=3), Scripted("last")
    sender = WeightSender(Broadcast("127.0.0.1"), bucket_bytes=1 << 20, timeout_s=5.0)
    with pytest.raises(WeightSyncError, match="failed on every receiver"):
        await sender.push(lambda: iter([]), [one, three, last], 1)
    assert [receiver.joined for receiver in (one, three, last)] == [[(1, 6)], [(2, 6)], [(5, 6)]]
