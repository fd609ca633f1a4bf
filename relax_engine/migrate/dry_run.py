"""Scores rows with a migrated reward and with its source: `python -m relax_engine.migrate.dry_run NEW OLD ROWS`.

What lives here: the process that runs both functions and prints one line of JSON. What does not: anything that
outlives it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from relax_engine.types import Sample
from relax_engine.utils.hooks import load_function

_EXAMPLES = 5


def main(argv: list[str]) -> int:
    """Compare; the result is the last line of stdout."""
    new, old, rows = argv
    differing: list[str] = []
    compared = 0
    migrated, source = load_function(new), load_source(old)
    for row in read_rows(Path(rows)):
        for response in responses(row):
            ours, theirs = migrated_score(migrated, row, response), source_score(source, row, response)
            compared += 1
            if not math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-12):
                differing.append(f"{response[-60:]!r} against {ground_truth(row)!r}: {ours} instead of {theirs}")
    print(json.dumps({"compared": compared, "differing": len(differing), "examples": differing[:_EXAMPLES]}))
    return 0


def load_source(reference: str) -> Callable[..., Any]:
    """The function at `file.py:name`; a file inside of a package is imported as part of it."""
    file, _, name = reference.rpartition(":")
    path = Path(file).resolve()
    package = path.parent
    while (package / "__init__.py").is_file():
        package = package.parent
    sys.path.append(str(package))
    parts = path.relative_to(package).with_suffix("").parts
    dotted = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    function: Callable[..., Any] = getattr(importlib.import_module(dotted), name)
    return function


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSONL or Parquet file."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        yield from pyarrow.parquet.read_table(path).to_pylist()
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def ground_truth(row: dict[str, Any]) -> str:
    """The row's label, in verl's layout or in ours."""
    model = row.get("reward_model")
    return str(model["ground_truth"] if isinstance(model, dict) else row.get("label", ""))


def responses(row: dict[str, Any]) -> list[str]:
    """The row's own response, or answers of several forms, right and wrong ones."""
    if row.get("response") is not None:
        return [str(row["response"])]
    right = ground_truth(row)
    forms = (
        "The sum.\n#### {}",
        "So it is $\\boxed{{{}}}$.",
        "Thus.\nAnswer: {}",
        "<think>So.</think> \\boxed{{{}}}",
        "{}",
    )
    return [form.format(answer) for form in forms for answer in (right, right + "1", "none")] + [""]


def migrated_score(function: Callable[..., Any], row: dict[str, Any], response: str) -> float:
    """The score that the engine would see."""
    extra = {key: value for key, value in row.items() if key not in ("prompt", "reward_model", "response", "label")}
    sample = Sample(prompt=row.get("prompt") or "", response=response, label=ground_truth(row), metadata=extra)
    group = next(iter(list(inspect.signature(function).parameters)[1:2]), "") == "samples"
    result = function(SimpleNamespace(**row.get("args", {})), [sample] if group else sample)
    result = _finished(result)
    return score(result[0] if group else result)


def source_score(function: Callable[..., Any], row: dict[str, Any], response: str) -> float:
    """The score of the source, called as its own manager does."""
    values = {
        "data_source": row.get("data_source"),
        "solution_str": response,
        "ground_truth": ground_truth(row),
        "extra_info": row.get("extra_info"),
    }
    names = list(inspect.signature(function).parameters)
    if "solution_strs" in names:
        plural = {"data_sources": "data_source", "solution_strs": "solution_str"}
        plural |= {"ground_truths": "ground_truth", "extra_infos": "extra_info"}
        result = function(**{name: [values[plural[name]]] for name in names if name in plural}, **row.get("args", {}))
        return score(result[0])
    if names[:1] == ["data_source"]:
        result = function(**{name: value for name, value in values.items() if name in names}, **row.get("args", {}))
    else:
        extra = {"extra_info": values["extra_info"]} if "extra_info" in names else {}
        result = function(response, values["ground_truth"], **extra, **row.get("args", {}))
    return score(_finished(result))


def score(result: Any) -> float:
    """The number in whatever a reward returns."""
    if isinstance(result, dict):
        return float(result["score"])
    return float(result[0] if isinstance(result, list | tuple) else result)


def _finished(result: Any) -> Any:
    async def wait() -> Any:
        return await result

    return asyncio.run(wait()) if inspect.isawaitable(result) else result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
