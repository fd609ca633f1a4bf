"""What the tests of this folder share: both engines, and what is measured about them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from pydantic import SecretStr

from relax_engine.backends.engines.launch import EngineProcess, launch_engine
from relax_engine.backends.engines.sglang_launch import default_python, find_sglang, launch_sglang

KINDS = ("sglang", "local")
KEY = SecretStr("the-key-of-these-tests")
CONTEXT = 512
START_S = 400.0
FACTS: dict[str, str] = {}
"""What the suite measured, printed at its end."""


@dataclass
class Engines:
    """Both kinds, each started when it is first asked for."""

    model: Path
    running: dict[str, EngineProcess] = field(default_factory=dict)

    def get(self, kind: str) -> EngineProcess:
        if kind not in self.running:
            started = time.monotonic()
            common = {"max_running_requests": 64, "context_length": CONTEXT, "timeout_s": START_S, "api_key": KEY}
            if kind == "local":
                self.running[kind] = launch_engine(self.model, max_total_tokens=20000, **common)
            else:
                found = find_sglang(default_python())
                FACTS["sglang"], FACTS["torch of sglang"] = found.sglang, found.torch
                self.running[kind] = launch_sglang(self.model, extra_args={"max_total_tokens": 20000}, **common)
            FACTS[f"start of {kind}, seconds"] = f"{time.monotonic() - started:.1f}"
            FACTS[f"memory of {kind}, MB"] = f"{sum(map(unshared, self.tree(kind))) / 1e6:.0f}"
        return self.running[kind]

    def tree(self, kind: str) -> list[psutil.Process]:
        process = psutil.Process(self.running[kind].pid)
        return [process, *process.children(recursive=True)]

    def close(self) -> None:
        """End them, and see that none of their processes is left."""
        trees = [process for kind in self.running for process in self.tree(kind)]
        for engine in self.running.values():
            engine.close()
        self.running.clear()
        _, alive = psutil.wait_procs(trees, timeout=10)
        assert alive == []


def unshared(process: psutil.Process) -> int:
    return process.memory_full_info().uss
