"""Other processes that use the stream, and how to kill them."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any


class Peer:
    """Body of a Ray actor: another process that uses the stream."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def pid(self) -> int:
        return os.getpid()

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """One client call from this process."""
        return getattr(self.client, method)(*args, **options)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(client, *args)` in this process."""
        return function(self.client, *args)


def kill(actor: Any) -> None:
    """SIGKILL the actor's process and wait until it is gone."""
    import ray

    pid = ray.get(actor.pid.remote(), timeout=60)
    kill_pid(pid)


def kill_pid(pid: int) -> None:
    """SIGKILL a process and wait until it is gone or a zombie."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return
        except FileNotFoundError:
            return
        time.sleep(0.02)
    raise TimeoutError(f"process {pid} did not die within 20 s")
