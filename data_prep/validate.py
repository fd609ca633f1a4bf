"""Validation of prompts and labels: one pass over the file, then a Great Expectations suite over the findings.

What lives here: reading the files once (memory bounded by one batch of prompts plus a few small values per row), the
checks that must come before any row is looked at. What does not: the rules (`suite`), the checks of single rows
(`schema`, `checks`), the result (`report`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.checks.collect import Collector
from data_prep.checks.tasks import TASKS, TEXT
from data_prep.errors import DataError, Finding
from data_prep.readers import column_names
from data_prep.report import RowFacts, ValidationReport
from data_prep.schema import LABEL, PROMPT
from data_prep.sources import Source, Spec, parse_sources
from data_prep.tokens import context_of, load_counter

MAX_REPORTED_ROWS = 20

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checks:
    """Which checks run beside those of prompts, labels and ids.

    Attributes:
        task: what the rows are for: `text`, `multiple-choice`, `multimodal` or `agentic`.
        rm_type: reward whose labels they are; labels it cannot use break a rule.
        unique: whether a prompt may occur only once.
        near: similarity (0 to 1) from which two prompts count as nearly the same; None to leave that out.
        against: evaluation prompts, none of which (or none like which, with `near`) may occur.
        max_bad_share: share of rows that may break a rule.
    """

    task: str = TEXT
    rm_type: str | None = None
    unique: bool = False
    near: float | None = None
    against: Spec | None = None
    max_bad_share: float = 0.0


def validate(
    spec: Spec,
    *,
    checks: Checks | None = None,
    tokenizer: str | Path | None = None,
    max_prompt_tokens: int | None = None,
    input_key: str = PROMPT,
    label_key: str = LABEL,
    docs: str | Path | None = None,
    max_reported_rows: int = MAX_REPORTED_ROWS,
) -> ValidationReport:
    """Check training data against the rules of their task.

    Args:
        spec: the file or files, as in `data_prep.sources.parse_spec`.
        checks: further checks.
        tokenizer: a Hugging Face directory; with it prompts are rendered by its chat template and counted.
        max_prompt_tokens: longest prompt; by default what the directory's `config.json` gives as context, less one.
        input_key: column of the prompt.
        label_key: column of the label.
        docs: folder that receives Great Expectations' data documentation, and plots of lengths and scripts.
        max_reported_rows: failing rows kept per rule; all are counted.

    Returns:
        The report; it does not raise for bad rows (`ValidationReport.raise_if_failed` does).

    Raises:
        DataError: a file cannot be read, no tokenizer is where one was promised, or there is no such task or reward.
    """
    checks = checks or Checks()
    if checks.task not in TASKS:
        raise DataError(f"unknown task {checks.task!r}; known tasks: {', '.join(TASKS)}")
    if tokenizer is None and max_prompt_tokens is not None:
        raise DataError(f"a prompt limit of {max_prompt_tokens} tokens needs a tokenizer; name its folder")
    sources = parse_sources(spec)
    report = ValidationReport(", ".join(map(str, sources)), 0)
    missing = (_missing_column(source, (input_key, label_key)) for source in sources)
    report.findings = [finding for finding in missing if finding]
    if report.findings:
        return report
    count = load_counter(tokenizer) if tokenizer is not None else None
    limit = max_prompt_tokens or (context_of(tokenizer) if tokenizer is not None else None)
    collector = Collector(checks.task, checks.rm_type, input_key, label_key, count, checks.near is not None)
    collector.read(sources)
    facts = collector.facts
    report.rows = len(facts.row)
    if not report.rows:
        report.findings.append(Finding("rows", "the dataset has no rows; give a file with at least one prompt"))
        return report
    duplicates = collector.compare(checks.unique, checks.near, checks.against)
    report.stats = _statistics(facts) | duplicates

    from data_prep.suite import run_suite

    report.docs = Path(docs) if docs is not None else None
    run_suite(facts, limit, report, task=checks.task, max_rows=max_reported_rows, max_bad_share=checks.max_bad_share)
    if report.docs is not None:
        from data_prep.plots import write_plots

        write_plots(report, report.docs / "figures.html")
    logger.info("validated %d rows of %s: %s", report.rows, report.path, "passed" if report.ok else "FAILED")
    return report


def _missing_column(source: Source, wanted: Sequence[str]) -> Finding | None:
    present = column_names(source)
    if not present:
        return Finding("rows", f"{source} has no rows; give a file with at least one prompt")
    missing = [column for column in wanted if column not in present]
    if not missing:
        return None
    return Finding("columns", f"{source} has no column {missing[0]!r}; it has {present}")


def _statistics(facts: RowFacts) -> dict[str, Any]:
    stats: dict[str, Any] = {"rows": len(facts.row), "label_characters": _spread(facts.label_length)}
    lengths = [count for count in facts.prompt_tokens if count is not None]
    if lengths:
        stats["prompt_tokens"] = _spread(lengths)
        stats["prompt_tokens_histogram"] = sorted(Counter(lengths).items())
    stats["sources"] = dict(facts.data_source.most_common(20))
    stats["scripts"] = dict(facts.scripts.most_common(20))
    return stats


def _spread(values: Sequence[int]) -> dict[str, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        "min": ordered[0],
        "median": ordered[last // 2],
        "p95": ordered[int(last * 0.95)],
        "max": ordered[-1],
        "mean": round(sum(ordered) / len(ordered), 2),
    }
