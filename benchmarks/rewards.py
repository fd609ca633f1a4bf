"""Benchmark of the rewards: verdicts per second through the executor, and what hanging verifiers cost.

    python benchmarks/rewards.py

`math`: answers graded by peers (tests/unit/rewards/graders.jsonl) and answers in many notations, in random order, each
once per pass, by a `RewardExecutor` with as many workers as there are cores and nothing remembered from other passes;
in `groups` each eight times, as the samples of a prompt agree. `cheap` are the answers that need
no computer algebra, `symbolic` those that do, `mixed` both as they come. `math-verify` is the same library called
directly, in one process and without our cheap comparisons, for the mixed answers. `code`: a program with three tests in
the sandbox. `hanging`: mixed answers of which one in fifty hangs until its deadline of a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    from relax_engine.rewards import math, symbolic

    reached = []
    parse = symbolic.parse
    symbolic.parse = lambda text: reached.append(text) or parse(text)  # type: ignore[func-returns-value, assignment]
    try:
        math.math_reward(None, Sample(response=response, label=label))
    finally:
        symbolic.parse = parse
    return bool(reached)


def rate(samples: Callable[[], list[Sample]], settings: RewardSettings, passes: int) -> dict[str, float]:
    """Samples per second over passes by new workers, which have seen nothing but easy answers before."""
    count, seconds = 0, 0.0
    for _ in range(passes):
        batch = samples()
        with RewardExecutor(settings, None) as executor:
            easy = [Sample(response="\\boxed{x+1}```python\n1\n```", label="[]") for _ in range(64)]
            asyncio.run(executor.score(easy))
            started = time.perf_counter()
            asyncio.run(executor.score(batch))
            seconds += time.perf_counter() - started
            count += len(batch)
    return {"samples": count, "seconds": seconds, "per_second": count / seconds}


def direct(chosen: list[tuple[str, str]]) -> dict[str, float]:
    """math-verify itself on the same pairs."""
    import math_verify

    math_verify.verify(math_verify.parse("$1$"), math_verify.parse("$2$"))
    started = time.perf_counter()
    for response, label in chosen:
        gold = math_verify.parse(f"${label}$" if "$" not in label else label)
        math_verify.verify(gold, math_verify.parse(f"\\boxed{{{last_boxed(response) or ''}}}"))
    seconds = time.perf_counter() - started
    return {"samples": len(chosen), "seconds": seconds, "per_second": len(chosen) / seconds}


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

    def samples(chosen: list[tuple[str, str]], copies: int = 1) -> list[Sample]:
        shuffled = chosen * copies
        random.Random(0).shuffle(shuffled)
        return [Sample(index=i, response=response, label=label) for i, (response, label) in enumerate(shuffled)]

    def hanging() -> list[Sample]:
        made = samples(known)
        for sample in made[::50]:
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
        "math_cheap": lambda: rate(lambda: samples(cheap), math, passes),
        "math_symbolic": lambda: rate(lambda: samples(algebra), math, passes),
        "math_mixed": lambda: rate(lambda: samples(known), math, passes),
        "math_groups_of_eight": lambda: rate(lambda: samples(known, 8), math, passes),
        "math_verify_one_process": lambda: direct(known),
        "math_one_in_fifty_hangs": lambda: rate(hanging, fragile, passes),
        "code_three_tests": lambda: rate(lambda: [Sample(response=PROGRAM, label=TESTS)] * 40, code, 1),
    }
    host = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    result: dict[str, Any] = {"host": host, "workers": options.workers, "answers": len(known), "symbolic": len(algebra)}
    for name, run in parts.items():
        result[name] = {key: round(value, 3) for key, value in run().items()}
        print(f"{name:28} {result[name]['per_second']:8.1f} /s", flush=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
