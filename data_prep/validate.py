"""Validation of prompts and labels: one pass over the file, then a Great Expectations suite over the findings.

What lives here: reading the file once (memory bounded by one batch of prompts plus a few small values per row), the
checks that must come before any row is looked at. What does not: the rules (`suite`), the layout (`schema`), the
result (`report`).
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import DataError, Finding
from data_prep.json_rows import BadRow
from data_prep.readers import column_names, count_rows, read_batches
from data_prep.report import OK, RowFacts, ValidationReport
from data_prep.schema import ID, LABEL, METADATA, PROMPT, label_defect, prompt_defect
from data_prep.sources import Source, Spec, parse_sources

MAX_REPORTED_ROWS = 20

logger = logging.getLogger(__name__)

Tokenize = Callable[[Any], int]


def validate(
    spec: Spec,
    *,
    tokenizer: str | Path | None = None,
    max_prompt_tokens: int | None = None,
    input_key: str = PROMPT,
    label_key: str = LABEL,
    docs: str | Path | None = None,
    max_reported_rows: int = MAX_REPORTED_ROWS,
) -> ValidationReport:
    """Check training data against the rules for text tasks.

    Args:
        spec: the file or files, as in `data_prep.sources.parse_spec`.
        tokenizer: a Hugging Face directory; with it prompts are rendered by its chat template and counted.
        max_prompt_tokens: longest prompt; by default what the directory's `config.json` gives as context, less one.
        input_key: column of the prompt.
        label_key: column of the label.
        docs: folder that receives Great Expectations' data documentation.
        max_reported_rows: failing rows kept per rule; all are counted.

    Returns:
        The report; it does not raise for bad rows (`ValidationReport.raise_if_failed` does).

    Raises:
        DataError: a file cannot be read, or no tokenizer is where one was promised.
    """
    sources = parse_sources(spec)
    name = ", ".join(map(str, sources))
    report = ValidationReport(name, 0)
    for source in sources:
        finding = _missing_column(source, (input_key, label_key))
        if finding:
            report.findings.append(finding)
    if report.findings:
        return report
    tokenize, limit = _tokenizer(tokenizer, max_prompt_tokens)
    facts = RowFacts()
    for source in sources:
        _collect(source, facts, input_key, label_key, tokenize)
    report.rows = len(facts.row)
    if not report.rows:
        report.findings.append(Finding("rows", "the dataset has no rows; give a file with at least one prompt"))
        return report
    report.stats = _statistics(facts)

    from data_prep.suite import run_suite

    report.docs = Path(docs) if docs is not None else None
    report.rules, report.findings = run_suite(facts, limit, report.docs, max_reported_rows)
    logger.info("validated %d rows of %s: %s", report.rows, name, "passed" if report.ok else "FAILED")
    return report


def _missing_column(source: Source, wanted: Sequence[str]) -> Finding | None:
    present = column_names(source)
    if not present:
        return Finding("rows", f"{source} has no rows; give a file with at least one prompt")
    missing = [column for column in wanted if column not in present]
    if not missing:
        return None
    return Finding("columns", f"{source} has no column {missing[0]!r}; it has {present}")


def _collect(source: Source, facts: RowFacts, input_key: str, label_key: str, tokenize: Tokenize | None) -> None:
    from relax_engine.utils.progress import progress

    offset = len(facts.row)
    with progress(f"validate {source.name}", count_rows(source)) as bar:
        for batch in read_batches(source):
            for number, row in batch.rows():
                if isinstance(row, BadRow):
                    raise DataError(f"{source} row {number}: {row.reason}")
                prompt, label = row.get(input_key), row.get(label_key)
                defect = prompt_defect(prompt)
                facts.row.append(offset + number)
                facts.id.append(row.get(ID, f"{source.name}-{number}"))
                facts.prompt.append(defect or OK)
                facts.label.append(label_defect(label) or OK)
                facts.label_length.append(len(label) if isinstance(label, str) else 0)
                if tokenize:
                    facts.prompt_tokens.append(None if defect else tokenize(prompt))
                facts.data_source[_source_of(row)] += 1
            bar.advance(len(batch))


def _source_of(row: dict[str, Any]) -> str:
    """`data_source`, from the row or from its metadata; "" when it names none."""
    metadata = row.get(METADATA)
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata)
        except json.JSONDecodeError:
            metadata = None
    return str((metadata if isinstance(metadata, dict) else row).get("data_source", ""))


def _tokenizer(directory: str | Path | None, limit: int | None) -> tuple[Tokenize | None, int | None]:
    if directory is None:
        if limit is not None:
            raise DataError(f"a prompt limit of {limit} tokens needs a tokenizer to count them; name its directory")
        return None, None
    directory = Path(directory)
    if not directory.is_dir():
        raise DataError(f"tokenizer directory {str(directory)!r} does not exist")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError) as error:
        raise DataError(f"{str(directory)!r} holds no tokenizer that can be loaded: {error}") from error
    if limit is None:
        limit = _context_of(directory)

    def tokenize(prompt: Any) -> int:
        if isinstance(prompt, str):
            return len(tokenizer.encode(prompt, add_special_tokens=False, verbose=False))
        text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        return len(tokenizer.encode(text, add_special_tokens=False, verbose=False))

    return tokenize, limit


def _context_of(directory: Path) -> int | None:
    """Longest prompt that leaves room for one response token, from `max_position_embeddings`; None if not stated."""
    config = directory / "config.json"
    if not config.is_file():
        return None
    context = json.loads(config.read_text()).get("max_position_embeddings")
    return int(context) - 1 if context else None


def _statistics(facts: RowFacts) -> dict[str, Any]:
    stats: dict[str, Any] = {"rows": len(facts.row), "label_characters": _spread(facts.label_length)}
    lengths = [count for count in facts.prompt_tokens if count is not None]
    if lengths:
        stats["prompt_tokens"] = _spread(lengths)
        stats["prompt_tokens_histogram"] = sorted(Counter(lengths).items())
    stats["sources"] = dict(facts.data_source.most_common(20))
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
