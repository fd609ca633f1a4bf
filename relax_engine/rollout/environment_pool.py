"""Environments in processes of their own: one that hangs, crashes or eats memory costs one attempt of one sample.

What lives here: the processes, and deadlines over their calls. What does not: what environments are (`environment`),
what runs in the process (`environment_worker`), and how often a sample is tried (`multi_turn`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pickle
import signal
import sys
from types import TracebackType
from typing import Any, Self

from relax_engine.rollout.environment import BaseInteractionEnv, Observation
from relax_engine.rollout.pool import RolloutError
from relax_engine.types import Message, Sample

_START_S = 60.0


class EnvironmentLostError(RolloutError):
    """An environment's process hung, died, or its code failed: the sample may be tried again with another one."""


class EnvironmentPool:
    """At most `size` processes, each of which serves one environment after the other.

    A process is used again when its environment was closed; after a missed deadline or an error it is killed with all
    that it started, and another one takes its place.
    """

    def __init__(self, size: int, *, timeout_s: float) -> None:
        """A pool without a process yet.

        Args:
            size: Environments at a time; further ones wait.
            timeout_s: Deadline of each call, in seconds.
        """
        self.timeout_s = timeout_s
        self.started = 0
        """Processes started so far."""
        self._slots = asyncio.Semaphore(size)
        self._idle: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def build(self, path: str, sample: Sample, args: Any) -> IsolatedEnvironment:
        """The environment of the module `path` for `sample`, in a process of its own; it must be closed.

        Raises:
            EnvironmentLostError: it cannot be made.
        """
        await self._slots.acquire()
        try:
            process = self._idle.pop() if self._idle else await self._start()
            environment = IsolatedEnvironment(self, process)
        except BaseException:
            self._slots.release()
            raise
        try:
            await environment.ask("build", path, sample, args, deadline_s=self.timeout_s + _START_S)
        except BaseException:
            await environment.close()
            raise
        return environment

    async def close(self) -> None:
        """End all idle processes."""
        while self._idle:
            await _kill(self._idle.pop())

    async def give_back(self, process: asyncio.subprocess.Process, *, sound: bool) -> None:
        """A process that its environment no longer needs."""
        if sound:
            self._idle.append(process)
        else:
            await _kill(process)
        self._slots.release()

    async def _start(self) -> asyncio.subprocess.Process:
        self.started += 1
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "relax_engine.rollout.environment_worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )


class IsolatedEnvironment(BaseInteractionEnv):
    """An environment in another process; every call has the pool's deadline."""

    def __init__(self, pool: EnvironmentPool, process: asyncio.subprocess.Process) -> None:
        self._pool, self._process = pool, process
        self._sound, self._closed = True, False
        self._formatted: Message | list[Message] = []

    async def reset(self) -> Any:
        """Begin."""
        return await self.ask("reset")

    async def step(self, response_text: str) -> Any:
        """Take a turn, and have what it shows put into messages there."""
        result = await self.ask("step", response_text)
        if isinstance(result, tuple) and result and isinstance(result[0], dict):
            self._formatted = await self.ask("format_observation", result[0])
        return result

    def format_observation(self, observation: Observation) -> Message | list[Message]:
        """The messages of the last step's observation."""
        return self._formatted or super().format_observation(observation)

    async def close(self) -> None:
        """Close it, and give its process back. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._sound:
                await self.ask("close")
        except EnvironmentLostError:
            self._sound = False
        finally:
            await self._pool.give_back(self._process, sound=self._sound)

    async def ask(self, name: str, *arguments: Any, deadline_s: float | None = None) -> Any:
        """The result of a method in the other process.

        Raises:
            EnvironmentLostError: it raised, did not answer in time, or the process is gone.
        """
        limit = self._pool.timeout_s if deadline_s is None else deadline_s
        try:
            async with asyncio.timeout(limit):
                good, value = await self._exchange(name, arguments)
        except TimeoutError as error:
            self._sound = False
            raise EnvironmentLostError(f"{name} of an environment took longer than {limit:g} s") from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            self._sound = False
            raise EnvironmentLostError(f"the process of an environment ended during {name}") from error
        except asyncio.CancelledError:
            self._sound = False
            raise
        if not good:
            self._sound = False
            raise EnvironmentLostError(f"{name} of an environment failed: {value}")
        return value

    async def _exchange(self, name: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        packed = pickle.dumps((name, arguments))
        self._process.stdin.write(len(packed).to_bytes(8, "little") + packed)
        await self._process.stdin.drain()
        size = int.from_bytes(await self._process.stdout.readexactly(8), "little")
        answer: tuple[bool, Any] = pickle.loads(await self._process.stdout.readexactly(size))
        return answer


@functools.cache
def pool_of(loop: asyncio.AbstractEventLoop, size: int, timeout_s: float) -> EnvironmentPool:
    """The pool of a process's event loop; its workers end with this process, whose pipes they read."""
    return EnvironmentPool(size, timeout_s=timeout_s)


async def _kill(process: asyncio.subprocess.Process) -> None:
    """End a process with its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    if process.stdin is not None:
        process.stdin.close()
