"""A run whose processes are killed by a seeded schedule, and the audit of what it trained."""

from __future__ import annotations

import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from relax_engine.observe.metrics import read_metrics

MARK = "RELAX_TEST_RUN"
_START_S = 180.0
BY_TITLE = {
    "stream_controller": r"^ray::StreamController",
    "storage_unit": r"^ray::StorageUnit",
    "engine": r"engines\.local",
    "serve_controller": r"^ray::ServeController",
}
BY_ROLE = {
    "rollout": ("rollout", "service"),
    "actor": ("actor", "service"),
    "actor_rank": ("actor", "rank 0"),
    "actor_fwd": ("actor_fwd", "service"),
    "actor_fwd_rank": ("actor_fwd", "rank 0"),
    "reference": ("reference", "service"),
    "reference_rank": ("reference", "rank 0"),
    "advantages": ("advantages", "service"),
    "critic": ("critic", "service"),
    "critic_rank": ("critic", "rank 0"),
    "sft": ("sft", "service"),
}


@dataclass
class ChaosRun:
    """`relax train` in a process and a Ray cluster of its own; all its processes carry a mark."""

    tiny: Any
    run_dir: Path
    flags: dict[str, Any]
    kills: list[tuple[str, int, float]] = field(default_factory=list)
    recoveries: dict[str, list[float]] = field(default_factory=dict)

    def start(self) -> None:
        # A recovery on a busy machine takes longer than the waits of other tests.
        config = self.tiny.config(self.run_dir, use_fault_tolerance=True, wait_timeout=240.0, **self.flags)
        self.run_dir.mkdir(exist_ok=True)
        (self.run_dir / "run.yaml").write_text(config.to_yaml())
        self.mark = uuid.uuid4().hex
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_ADDRESS")}
        self.process = subprocess.Popen(
            [Path(sys.executable).parent / "relax", "train", "--config", self.run_dir / "run.yaml"],
            env={**environment, MARK: self.mark, "OMP_NUM_THREADS": "1"},
            stdout=(self.run_dir / "out.log").open("wb"),
            stderr=subprocess.STDOUT,
        )

    def log(self) -> str:
        return (self.run_dir / "out.log").read_text()

    def report(self) -> str:
        return f"kills {self.kills}\n{self.log()[-4000:]}"

    def steps(self) -> int:
        path = self.run_dir / "metrics.jsonl"
        return len(read_metrics(path)) if path.exists() else 0

    def wait_for_step(self, step: int, seconds: float) -> bool:
        """Whether the run got that far; False when it has ended."""
        deadline = time.monotonic() + seconds
        while self.steps() < step:
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline, f"step {step} not within {seconds} s; {self.report()}"
            time.sleep(0.05)
        return True

    def processes(self) -> list[psutil.Process]:
        """All that carry the mark."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def victim(self, kind: str) -> psutil.Process | None:
        """A process of the kind, None while there is none."""
        if kind in BY_TITLE:
            for process in self.processes():
                try:
                    if re.search(BY_TITLE[kind], " ".join(process.cmdline())):
                        return process
                except psutil.Error:
                    continue
            return None
        role, name = BY_ROLE[kind]
        try:
            with urllib.request.urlopen(f"{self.address()}/{role}/health", timeout=5) as answer:
                process = psutil.Process(json.load(answer)["processes"][name])
            return None if process.status() == psutil.STATUS_ZOMBIE else process
        except (OSError, KeyError, ValueError, psutil.Error):
            return None

    def address(self) -> str:
        match = re.findall(r"roles answer at (http://[\d.:]+)", self.log())
        return match[-1] if match else "http://127.0.0.1:9"

    def kill(self, kind: str, seconds: float = 120) -> None:
        """SIGKILL a process of the kind as soon as there is one."""
        deadline = time.monotonic() + seconds
        while (victim := self.victim(kind)) is None:
            assert time.monotonic() < deadline, f"no {kind} within {seconds} s; {self.report()}"
            assert self.process.poll() is None, self.report()
            time.sleep(0.1)
        victim.kill()
        self.kills.append((kind, self.steps(), time.time()))

    def torment(
        self, schedule: Sequence[Sequence[str]], seed: int, *, recovery_s: float, budget_s: float = math.inf
    ) -> None:
        """Kill one lot after the other, each at a random moment after the last one's recovery: a further step.

        Lots that are not due within `budget_s` are spared.
        """
        rng = random.Random(seed)
        assert self.wait_for_step(1, _START_S), self.report()
        end, step = time.monotonic() + budget_s, 1
        for kinds in schedule:
            if time.monotonic() > end:
                return
            assert self.wait_for_step(step, recovery_s), f"the run ended before {kinds} died; {self.report()}"
            time.sleep(rng.uniform(0.0, 1.0))
            for kind in kinds:
                self.kill(kind)
            killed, step = time.monotonic(), self.steps() + 1
            assert self.wait_for_step(step, recovery_s), f"the run ended when {kinds} died; {self.report()}"
            for kind in kinds:
                self.recoveries.setdefault(kind, []).append(time.monotonic() - killed)

    def finish(self, seconds: float) -> None:
        assert self.process.wait(seconds) == 0, self.report()

    def stop(self) -> None:
        """End whatever is left."""
        for process in self.processes():
            try:
                process.kill()
            except psutil.Error:
                continue

    def facts(self, steps: int, rows_per_step: int) -> dict[str, Any]:
        """What is worth keeping of a run that was audited."""
        log = self.log()
        return {
            "kills": dict(Counter(kind for kind, _, _ in self.kills)),
            "steps": steps,
            "rows": steps * rows_per_step,
            "lost": 0,
            "duplicated": 0,
            "seconds_to_the_next_step": {
                kind: {"median": round(statistics.median(seconds), 2), "max": round(max(seconds), 2)}
                for kind, seconds in self.recoveries.items()
            },
            "role_restarts": dict(Counter(re.findall(r"starting role (\w+) again", log))),
            "run_restarts": log.count("starting the run again"),
        }

    def audit(self, steps: int, rows_per_step: int) -> None:
        """Every row once, none missing; the accounting closes; losses are finite."""
        lines = [json.loads(line) for line in (self.run_dir / "trained_rows.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(steps))
        trained = Counter(row for line in lines for row in line["samples"])
        assert all(len(line["samples"]) == rows_per_step for line in lines)
        assert max(trained.values()) == 1, f"trained twice: {[row for row, n in trained.items() if n > 1]}"
        assert sorted(trained) == list(range(steps * rows_per_step))
        records = read_metrics(self.run_dir / "metrics.jsonl")
        assert [record["step"] for record in records] == list(range(steps))
        for record in records:
            assert math.isfinite(record["train/loss"])
            assert math.isfinite(record["train/grad_norm"])
            if "stream/produced" not in record:
                continue  # the actor died after saving this step: its line is the checkpoint's
            ended = sum(record[f"stream/{outcome}"] for outcome in ("trained", "filtered", "dropped_stale"))
            assert record["stream/produced"] == ended + record["stream/in_flight"]
        assert (records[-1]["stream/in_flight"], records[-1]["stream/nbytes"]) == (0, 0)
