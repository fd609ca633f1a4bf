"""Reward functions as a user would write them, good and bad; worker processes import this module."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import Any

from relax_engine.types import Sample

running = 0
most_running = 0


def half(args: Any, sample: Sample, **kwargs: Any) -> float:
    return 0.5


def index_alone(sample: Sample) -> int:
    return sample.index


def scaled(args: Any, sample: Sample) -> dict[str, Any]:
    return {"score": args["scale"] * len(sample.response), "note": sample.response}


def tenth_of_a_second(args: Any, sample: Sample) -> float:
    time.sleep(0.1)
    return 1.0


def stuck_if_told(args: Any, sample: Sample) -> float:
    while sample.label == "stuck":
        pass
    return 1.0


def stuck_with_child(args: Any, sample: Sample) -> float:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(sample.metadata["pid_file"], "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    time.sleep(600)
    return 1.0


def misbehave(args: Any, sample: Sample) -> Any:
    match sample.label:
        case "raise":
            raise KeyError("no such answer")
        case "exit":
            sys.exit("bye")
        case "die":
            os._exit(3)
        case "nan":
            return float("nan")
        case "text":
            return "great"
        case "unpicklable":
            return lambda: None
        case _:
            return 1.0


def heavy_modules(args: Any, sample: Sample) -> float:
    return float(sum(name in sys.modules for name in ("torch", "ray", "reward_main_module")))


def ranks(args: Any, samples: list[Sample]) -> list[float]:
    return [float(position) for position, _ in enumerate(samples)]


def one_short(samples: list[Sample], **kwargs: Any) -> list[float]:
    return [0.0] * (len(samples) - 1)


async def counted(args: Any, sample: Sample) -> float:
    global running, most_running
    running += 1
    most_running = max(most_running, running)
    await asyncio.sleep(0.02)
    running -= 1
    return 0.25


async def misbehave_async(args: Any, sample: Sample) -> Any:
    if sample.label == "raise":
        raise ValueError("judge is down")
    if sample.label == "slow":
        await asyncio.sleep(600)
    if sample.label == "stubborn":
        for _ in range(2):
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                continue
    return 1.0


def hang_or_die(args: Any, sample: Sample, how: str = "") -> float:
    if (how or sample.label) == "hang":
        time.sleep(60.0)
    if (how or sample.label) == "die":
        os._exit(3)
    if sample.label == "raise":
        raise KeyError("no such answer")
    return 1.0
