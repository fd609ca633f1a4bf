"""`--rm-type code`: does the Python program of the response pass the row's tests, in the sandbox?

What lives here: finding the program and comparing what it says. What does not: reading tests (`code_tests`) and running
programs (`sandbox`).
"""

from __future__ import annotations

import json
import math
import re
import secrets
from typing import Any

from relax_engine.rewards import code_tests
from relax_engine.rewards.code_tests import CodeTest, read_tests
from relax_engine.rewards.extract import after_thoughts
from relax_engine.rewards.sandbox.limits import Limits
from relax_engine.rewards.sandbox.run import Outcome, run_program
from relax_engine.types import Sample

TOLERANCE = 1e-6

_FENCED = re.compile(r"```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)```", re.DOTALL)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?|[+-]?\d+")
check_label = code_tests.check_label


def code_reward(
    args: Any,
    sample: Sample,
    *,
    partial: bool = False,
    max_tests: int = 32,
    cpu_s: int = 4,
    wall_s: float = 8.0,
    memory_mb: int = 1024,
) -> float:
    """1.0 if the program passes all tests, else 0.0; with `partial` the share of the tests that it passes.

    The program is the last fenced block marked as Python after the thoughts, or else the last block. A response without
    one scores 0.0, and so does a row without tests. Programs that hang, crash or reach a limit fail the test at hand.

    Args:
        partial: Run all tests instead of ending at the first that fails.
        max_tests: Only so many of the tests are run, the first.
        cpu_s: Processor seconds of one test.
        wall_s: Seconds of one test from start to end.
        memory_mb: MiB of address space.

    Raises:
        ValueError: tests in no known form.
        SandboxError: programs cannot be confined on this machine.
    """
    tests = read_tests(sample)[:max_tests]
    program = find_program(sample.response)
    if program is None or not tests:
        return 0.0
    token = secrets.token_hex(16)
    limits = Limits(cpu_s=cpu_s, wall_s=wall_s, memory_mb=memory_mb)
    inputs = [{**test.run, "token": token} if "check" in test.run else test.run for test in tests]
    outcomes = run_program(program, inputs, limits, stop_at_failure=not partial)
    passed = sum(_passes(test, outcome, token) for test, outcome in zip(tests, outcomes, strict=False))
    return passed / len(tests) if partial else float(passed == len(tests))


def find_program(response: str) -> str | None:
    """The last Python block after the thoughts, or else the last block without another language; None without one."""
    blocks = _FENCED.findall(after_thoughts(response))
    for wanted in (("python", "py", "python3"), ("",)):
        found = [code for language, code in blocks if language.lower() in wanted]
        if found:
            return str(found[-1])
    return None


def same_output(found: str, expected: str) -> bool:
    """Equal line by line but for white space at the ends; or else word by word, decimal numbers to 1e-6."""
    lines, wanted = (text.rstrip().split("\n") for text in (found, expected))
    if [line.rstrip() for line in lines] == [line.rstrip() for line in wanted]:
        return True
    a, b = found.split(), expected.split()
    return len(a) == len(b) and all(map(_same_word, a, b))


def same_value(found: Any, expected: Any) -> bool:
    """Equal JSON values; fractional numbers to 1e-6, true and 1 are different."""
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(same_value, found, expected))
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(same_value(found[key], expected[key]) for key in expected)
    if isinstance(expected, bool) or isinstance(found, bool):
        return found is expected
    if isinstance(expected, int | float) and isinstance(found, int | float):
        return found == expected or math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(found == expected)


def _same_word(found: str, expected: str) -> bool:
    if found == expected:
        return True
    if "." not in expected and "e" not in expected.lower():
        return False
    if not _DECIMAL.fullmatch(found) or not _DECIMAL.fullmatch(expected):
        return False
    return math.isclose(float(found), float(expected), rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _passes(test: CodeTest, outcome: Outcome, token: str) -> bool:
    if outcome.ended != "exit":
        return False
    if "check" in test.run:
        return outcome.value == token
    if "function" not in test.run:
        return same_output(outcome.stdout, test.expected)
    try:
        value = json.loads(outcome.value)
    except ValueError:
        return False
    return same_value(value, test.expected) or same_value([value], test.expected)  # APPS wraps results in a list
