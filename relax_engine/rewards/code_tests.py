"""The tests of a programming task, as the data sets write them.

They are `metadata["tests"]`, or else the label as JSON, in one of these forms:

- `{"inputs": [...], "outputs": [...]}`: standard input and output (APPS, verl's prime_code). With `fn_name`, calls of
that
  function: each input is a list of arguments, or text with one JSON value per line.
- `[{"input": ..., "output": ..., "testtype": "stdin" | "functional"}, ...]` (LiveCodeBench); `metadata["fn_name"]` or a
  `fn_name` in the test names the function.
- `["assert f(1) == 2", ...]`, or `{"assert_case": [...]}`: code that raises if the program is wrong (MBPP).
- one text: the body of a check (HumanEval); `metadata["entry_point"]`, if given, is passed to its `check`.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from relax_engine.types import Sample


class CodeTest(NamedTuple):
    """One run of the sandbox, and what it must give: text, a JSON value, or nothing for a check."""

    run: dict[str, Any]
    expected: Any = None


def read_tests(sample: Sample) -> list[CodeTest]:
    """The tests of a row; none if it has none.

    Raises:
        ValueError: they are in no form above.
    """
    tests = sample.metadata.get("tests")
    tests = sample.label if tests is None else tests
    if isinstance(tests, str):
        tests = _from_text(tests)
    return _read(tests, sample.metadata) if tests else []


def check_label(label: str) -> str | None:
    """Why `label` holds no tests, or None if it does."""
    try:
        return None if read_tests(Sample(label=label)) else "the label holds no tests"
    except ValueError as error:
        return str(error)


def _from_text(text: str) -> Any:
    if text.lstrip()[:1] not in ("{", "["):
        return text.strip()
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"the tests are no JSON: {error}") from error


def _read(tests: Any, metadata: dict[str, Any]) -> list[CodeTest]:
    if isinstance(tests, str):
        entry_point = metadata.get("entry_point")
        return [CodeTest({"check": f"{tests}\ncheck({entry_point})\n" if entry_point else tests})]
    if isinstance(tests, dict) and "assert_case" in tests:
        tests = tests["assert_case"]
    if isinstance(tests, dict):
        return _columns(tests, tests.get("fn_name") or metadata.get("fn_name"))
    if isinstance(tests, list) and all(isinstance(test, str) for test in tests):
        return [CodeTest({"check": test}) for test in tests]
    if isinstance(tests, list) and all(isinstance(test, dict) and {"input", "output"} <= test.keys() for test in tests):
        return [_record(test, metadata) for test in tests]
    raise ValueError(f"the tests are in no known form: {str(tests)[:80]!r}")


def _columns(tests: dict[str, Any], function: str | None) -> list[CodeTest]:
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("the tests need `inputs` and `outputs`, two lists of one length")
    if function:
        return [_call(function, given, wanted) for given, wanted in zip(inputs, outputs, strict=True)]
    return [CodeTest({"stdin": _lines(given)}, _lines(wanted)) for given, wanted in zip(inputs, outputs, strict=True)]


def _record(test: dict[str, Any], metadata: dict[str, Any]) -> CodeTest:
    function = test.get("fn_name") or metadata.get("fn_name")
    if test.get("testtype") == "functional" or (function and test.get("testtype") is None):
        if not function:
            raise ValueError("a functional test needs `fn_name`, in the test or in the row's metadata")
        return _call(function, test["input"], test["output"])
    return CodeTest({"stdin": _lines(test["input"])}, _lines(test["output"]))


def _call(function: str, given: Any, wanted: Any) -> CodeTest:
    try:
        arguments = (
            [json.loads(line) for line in given.splitlines() if line.strip()] if isinstance(given, str) else given
        )
        expected = json.loads(wanted) if isinstance(wanted, str) and isinstance(given, str) else wanted
    except ValueError as error:
        raise ValueError(f"the arguments or the result of {function} are no JSON: {error}") from error
    if not isinstance(arguments, list):
        raise ValueError(f"the arguments of {function} must be a list, got {arguments!r}")
    return CodeTest({"function": function, "arguments": arguments}, expected)


def _lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)
