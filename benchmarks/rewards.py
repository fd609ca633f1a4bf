"""Benchmark of the rewards: verdicts per second and per CPU-second, and what hanging verifiers cost.

    python benchmarks/rewards.py

`math`: answers graded by peers (tests/unit/rewards/graders.jsonl) and answers in many notations, in random order, by a
`RewardExecutor` with as many workers as there are cores. New workers score one half first, unmeasured, so that
libraries are loaded, and nothing is remembered of the answers that are measured. `cheap` are the answers that need no
computer algebra, `symbolic` those that do, `mixed` both as they come, `groups_of_eight` each of them eight times, as
the samples of a prompt agree. `math_verify_one_process` is the same library called directly, without our cheap
comparisons, for the mixed answers. `one_in_fifty_hangs`: mixed answers of which one in fifty hangs until its deadline
of a second. `code`: a program with three tests in the sandbox.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from relax_engine.rewards import RewardExecutor, RewardSettings
from relax_engine.rewards.boxed import last_boxed
from relax_engine.types import Sample

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "unit" / "rewards" / "graders.jsonl"
RESULTS = ROOT / "benchmarks" / "results" / "rewards.json"
NOTATIONS = [
    *(("\\frac{1}{2}", "0.5"), ("x^2+2x+1", "(x+1)^2"), ("1,234", "1234"), ("\\text{Monday}", "Monday"), ("B", "(B)")),
    *(("(1,2)", "(1, 2)"), ("\\sqrt{12}", "2\\sqrt{3}"), ("\\frac{\\pi}{4}", "0.25\\pi"), ("-3", "3"), ("7", "7.5")),
]
PROGRAM = "```python\nn = int(input())\nprint(sum(i * i for i in range(n)))\n```"
TESTS = json.dumps({"inputs": ["3", "10", "100"], "outputs": ["5", "285", "328350"]})


def pairs() -> list[tuple[str, str]]:
    """Boxed answers and labels, none of them twice."""
    cases = [json.loads(line) for line in CASES.read_text().splitlines()]
    graded = [tuple(case["args"]) for case in cases if case["kind"] == "math"]
    algebra = [
        (f"\\boxed{{{case['args'][1].strip('$')}}}", case["args"][0]) for case in cases if case["kind"] == "equal"
    ]
    written = [(f"so it is \\boxed{{{answer}}}", label) for label, answer in NOTATIONS]
    return [
        (response, label) for response, label in dict.fromkeys([*graded, *algebra, *written]) if len(response) < 400
    ]


def hang_or_grade(args: Any, sample: Sample) -> float:
    """`math`, but for samples that say that they hang."""
    from relax_engine.rewards.math import math_reward

    if sample.metadata.get("hangs"):
        time.sleep(3600)
    return math_reward(args, sample)


def needs_algebra(response: str, label: str) -> bool:
    """Whether `math` goes as far as computer algebra for this pair."""
    from relax_engine.rewards import math
    from relax_engine.rewards.answers import symbolic

    reached = []
    parse = symbolic.parse
    symbolic.parse = lambda text: reached.append(text) or parse(text)  # type: ignore[func-returns-value, assignment]
    try:
        math.math_reward(None, Sample(response=response, label=label))
    finally:
        symbolic.parse = parse
    return bool(reached)


def rate(halves: Sequence[list[Sample]], settings: RewardSettings, passes: int) -> dict[str, float]:
    """Samples per second over passes: new workers score one half unmeasured, then the other, in turns."""
    count, seconds, cpu_s = 0, 0.0, 0.0
    for number in range(passes):
        before, measured = halves if number % 2 else reversed(halves)
        with RewardExecutor(settings, None) as executor:
            asyncio.run(executor.score(before))
            cpu, started = tree_cpu_s(), time.perf_counter()
            asyncio.run(executor.score(measured))
            seconds += time.perf_counter() - started
            cpu_s += tree_cpu_s() - cpu
            count += len(measured)
    return _rates(count, seconds, cpu_s)


def tree_cpu_s() -> float:
    """CPU seconds so far of this process and all below it, ended ones included once they were waited for."""
    me = psutil.Process()
    times = [process.cpu_times() for process in me.children(recursive=True)]
    below = sum(t.user + t.system + t.children_user + t.children_system for t in times)
    return below + sum(me.cpu_times()[:2])


def _rates(count: int, seconds: float, cpu_s: float) -> dict[str, float]:
    rates = {"per_second": count / seconds, "per_cpu_second": count / cpu_s}
    return {"samples": count, "seconds": seconds, "cpu_s": cpu_s, **rates}


def direct(chosen: list[tuple[str, str]]) -> dict[str, float]:
    """math-verify itself on the same pairs, of which the first half is not measured."""
    import math_verify

    half, started, cpu = len(chosen) // 2, 0.0, 0.0
    for number, (response, label) in enumerate(chosen):
        if number == half:
            cpu, started = tree_cpu_s(), time.perf_counter()
        gold = math_verify.parse(f"${label}$" if "$" not in label else label)
        math_verify.verify(gold, math_verify.parse(f"\\boxed{{{last_boxed(response) or ''}}}"))
    return _rates(len(chosen) - half, time.perf_counter() - started, tree_cpu_s() - cpu)


def main() -> None:
    """Run all parts and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=5, help="passes over the answers")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="worker processes")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    known = pairs()
    algebra = [pair for pair in known if needs_algebra(*pair)]
    cheap = [pair for pair in known if pair not in algebra]

    def halves(chosen: list[tuple[str, str]], copies: int = 1) -> list[list[Sample]]:
        shuffled = random.Random(0).sample(chosen, len(chosen))
        parts = [shuffled[::2] * copies, shuffled[1::2] * copies]
        return [[Sample(index=i, response=pair[0], label=pair[1]) for i, pair in enumerate(part)] for part in parts]

    def hanging() -> list[list[Sample]]:
        made = halves(known)
        for sample in (*made[0][::50], *made[1][::50]):
            sample.metadata["hangs"] = True
        return made

    math = RewardSettings(rm_type="math", num_workers=options.workers)
    code = RewardSettings(rm_type="code", num_workers=options.workers)
    fragile = RewardSettings(
        custom_rm_path=f"{Path(__file__).resolve()}:hang_or_grade",
        num_workers=options.workers,
        timeout_s=1.0,
        failure_score=0.0,
    )
    passes = options.passes
    parts: dict[str, Callable[[], dict[str, float]]] = {
        "math_cheap": lambda: rate(halves(cheap), math, passes),
        "math_symbolic": lambda: rate(halves(algebra), math, passes),
        "math_mixed": lambda: rate(halves(known), math, passes),
        "math_groups_of_eight": lambda: rate(halves(known, 8), math, passes),
        "math_verify_one_process": lambda: direct(known),
        "math_one_in_fifty_hangs": lambda: rate(hanging(), fragile, passes),
        "code_three_tests": lambda: rate([[Sample(response=PROGRAM, label=TESTS)] * 20] * 2, code, 2),
    }
    host = {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }
    result: dict[str, Any] = {"host": host, "workers": options.workers, "answers": len(known), "symbolic": len(algebra)}
    for name, run in parts.items():
        result[name] = {key: round(value, 3) for key, value in run().items()}
        rates = result[name]["per_second"], result[name]["per_cpu_second"]
        print(f"{name:28} {rates[0]:8.1f} /s {rates[1]:8.1f} /CPU-s", flush=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
