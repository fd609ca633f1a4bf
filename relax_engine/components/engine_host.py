"""One engine process of the run, on the node where a device was reserved for it.

What lives here: the process. What does not: which engines there are, and what their death means (`engine_group.py`).
"""

from __future__ import annotations

import logging
import signal
import subprocess
from dataclasses import dataclass

import ray

from relax_engine.backends.engines.starting import EngineStart

logger = logging.getLogger(__name__)

_LAST_ANSWERS_S = 10.0


@dataclass(frozen=True, slots=True)
class EngineEnd:
    """How an engine ended. `evicted`: it was told to by SIGTERM, as a machine does that is taken away."""

    reason: str
    evicted: bool = False


class EngineHost:
    """A Ray actor that holds one engine process on the node where the placement put it."""

    def __init__(self, start: EngineStart) -> None:
        self._engine = start.launch(ray.util.get_node_ip_address())

    def facts(self) -> tuple[str, int, str]:
        """Where the engine answers, its process id, and the id of its node."""
        return self._engine.url, self._engine.pid, ray.get_runtime_context().get_node_id()

    def wait(self) -> EngineEnd:
        """Return when the engine's process has ended: how, and the end of its log."""
        status = self._engine.process.wait()
        reason = f"its process ended with status {status}:\n{self._engine.log_tail()}"
        return EngineEnd(reason, evicted=status in (-signal.SIGTERM, 128 + signal.SIGTERM))

    def kill(self) -> None:
        """End the engine process at once; one that ends by itself has time for its last answers."""
        process = self._engine.process
        if process.poll() is None and not self._engine.listens():
            try:
                process.wait(_LAST_ANSWERS_S)
            except subprocess.TimeoutExpired:
                logger.warning("engine %s did not end within %g s", self._engine.url, _LAST_ANSWERS_S)
        process.kill()

    def close(self) -> None:
        """End the engine process."""
        self._engine.close()
