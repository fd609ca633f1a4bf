"""The metrics of a run as series over steps: ranges of them, and their newest values as Prometheus text.

What lives here: reading `metrics.jsonl`, `eval.jsonl` and `posted.jsonl`, also while they grow. What does not: writing
them.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
import re
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from relax_engine.observe.definitions import definition
from relax_engine.observe.forward import LABELS, LogFollower

_LOGS = ("metrics", "eval", "posted")
_LONGEST = 2000


class RunMetrics:
    """Every metric of a run directory, by step; asked again, it reads what has come since. Thread-safe.

    Steps that the run did again after a crash are there once, as they finally happened.
    """

    def __init__(self, run_dir: Path) -> None:
        self._followers = {kind: LogFollower(run_dir / f"{kind}.jsonl") for kind in _LOGS}
        self._records: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _LOGS}
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Read new lines."""
        with self._lock:
            for kind, follower in self._followers.items():
                back, records = follower.new()
                if back is not None:
                    self._records[kind] = [record for record in self._records[kind] if record["step"] < back]
                self._records[kind] += records

    def names(self) -> list[str]:
        """Every metric that the run has logged, sorted."""
        names: set[str] = set()
        for record in self._all():
            names.update(record)
        return sorted(names.difference(LABELS))

    def last(self) -> dict[str, Any]:
        """The newest record of the log, with its `step`; empty before the first."""
        self.refresh()
        return dict(self._records["metrics"][-1]) if self._records["metrics"] else {}

    def query(
        self, patterns: Sequence[str], *, start: int = 0, end: int | None = None, points: int = _LONGEST
    ) -> dict[str, dict[str, list[float | None]]]:
        """Series of the metrics that match a pattern (`*` and `?` as in file names), for steps `start` to `end`.

        Longer series than `points` have the mean of neighbours at the first one's step.

        Returns:
            For each metric `steps` and `values`, None for values that are no finite number.
        """
        self.refresh()
        found: dict[str, tuple[list[float | None], list[float | None]]] = {}
        for record in self._all():
            step = record["step"]
            if step < start or (end is not None and step > end):
                continue
            for name, value in record.items():
                if name in LABELS or not isinstance(value, int | float):
                    continue
                if name in found or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                    steps, values = found.setdefault(name, ([], []))
                    steps.append(step)
                    values.append(float(value) if math.isfinite(value) else None)
        return {
            name: dict(zip(("steps", "values"), _thinned(*series, points), strict=True))
            for name, series in sorted(found.items())
        }

    def prometheus(self) -> str:
        """The newest value of every metric in Prometheus' text format, with the definitions as help."""
        self.refresh()
        newest: dict[str, float] = {}
        for record in self._all():
            newest |= {name: value for name, value in record.items() if isinstance(value, int | float)}
        step = newest.pop("step", None)
        lines = [] if step is None else ["# TYPE relax_step gauge", f"relax_step {step}"]
        for name, value in sorted(newest.items()):
            if name in LABELS:
                continue
            flat = "relax_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
            known = definition(name)
            if known is not None:
                lines.append(f"# HELP {flat} {known.meaning}{f' ({known.unit})' if known.unit else ''}")
            lines += [f"# TYPE {flat} gauge", f"{flat} {_prometheus_number(value)}"]
        return "\n".join(lines) + "\n"

    def write_parquet(self, path: Path) -> None:
        """Everything as one table: `step`, `metric`, `value`, and for evaluations their `dataset`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.refresh()
        rows = [
            {"step": record["step"], "metric": name, "value": float(value), "dataset": record.get("dataset")}
            for record in self._all()
            for name, value in record.items()
            if name not in LABELS and isinstance(value, int | float)
        ]
        fields = [("step", pa.int64()), ("metric", pa.string()), ("value", pa.float64()), ("dataset", pa.string())]
        temporary = path.with_suffix(".tmp")
        pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(fields)), temporary, compression="zstd")
        temporary.replace(path)

    def _all(self) -> Iterable[dict[str, Any]]:
        for kind in _LOGS:
            yield from self._records[kind]


def _thinned(
    steps: list[float | None], values: list[float | None], points: int
) -> tuple[list[float | None], list[float | None]]:
    if len(steps) <= points:
        return steps, values
    edges = [round(i * len(steps) / points) for i in range(points + 1)]
    means: list[float | None] = []
    for low, high in itertools.pairwise(edges):
        numbers = [value for value in values[low:high] if value is not None]
        means.append(sum(numbers) / len(numbers) if numbers else None)
    return [steps[edge] for edge in edges[:-1]], means


def _prometheus_number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else repr(float(value))
