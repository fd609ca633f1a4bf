"""Validation of a converted dataset. Only what passes is published."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from flytekit import task

from tasks import decks, html
from tasks.content import ContentFile, file_key
from tasks.executions import executed
from tasks.settings import CACHE, EVERY_TASK, MEDIUM, SHORT
from tasks.store import fetch, publish, work_directory
from tasks.types import ArtifactRef

if TYPE_CHECKING:
    from data_prep.report import ValidationReport


@task(cache=CACHE, requests=MEDIUM, timeout=SHORT, **EVERY_TASK)
def validate_dataset(
    converted: ContentFile, raw: ArtifactRef, model: ArtifactRef, pipeline: str, part: str
) -> ArtifactRef:
    """Check a converted dataset, with the tokenizer of `model` for prompt lengths, and publish it.

    The dataset becomes `<pipeline>-<part>`; the report goes to the artifact `<pipeline>-<part>-validation`, with Great
    Expectations' data documentation.

    Raises:
        DataValidationError: rows or columns break a rule; the message lists them with reasons.
    """
    name = f"{pipeline}-{part}"
    inputs = {"raw": raw, "converted": file_key(converted), "model": model, "name": name}
    with executed("validate_dataset"), work_directory("validate", **inputs) as work:
        from data_prep.validate import validate

        path = Path(os.fspath(converted))
        report = validate(str(path), tokenizer=fetch(model), docs=work / "report" / "data_docs")
        report.path = name
        title = f"Validation of {name}"
        parts = _report(report)
        if not report.ok:
            decks.show_failure(name, title, *parts, html.lineage(None, [raw]))
            report.raise_if_failed()
        artifact = publish(path, kind="dataset", name=name, parents=[raw], metrics={"rows": report.rows})
        document = decks.show(title, *parts, html.lineage(artifact, [raw]))
        _publish_report(work, document, report, artifact)
        return artifact


def _report(report: ValidationReport) -> list[str]:
    verdict = html.text("every rule holds", "ok") if report.ok else html.text("the dataset is not usable", "bad")
    rules = html.table(
        ("rule", "what it asks for", "rows checked", "rows failed"),
        [(rule.rule, rule.description, rule.checked, rule.failed) for rule in report.rules],
    )
    parts = [verdict, rules]
    for finding in report.findings:
        rows = html.table(("row", "reason"), finding.rows) if finding.rows else ""
        parts.append(html.section(finding.rule, html.text(finding.reason, "bad"), rows))
    stats = report.stats
    if stats:
        from data_prep.plots import plots

        lengths = {key: value for key, value in stats.items() if key in ("prompt_tokens", "label_characters")}
        spread = [(key.replace("_", " "), *value.values()) for key, value in lengths.items()]
        parts.append(
            html.section(
                f"{report.rows} rows",
                html.table(("length", "min", "median", "95 %", "max", "mean"), spread),
                html.table(("source", "rows"), stats["sources"].items()),
                *(html.figure(title, picture) for title, picture in plots(report).items()),
            )
        )
    return parts


def _publish_report(work: Path, document: str, report: ValidationReport, dataset: ArtifactRef) -> None:
    """Publish the report beside the dataset; the documentation's fonts and logos are left out."""
    directory = work / "report"
    shutil.rmtree(directory / "data_docs" / "static", ignore_errors=True)
    (directory / "report.html").write_text(document, encoding="utf-8")
    facts = {"rules": [asdict(rule) for rule in report.rules], "stats": report.stats}
    (directory / "report.json").write_text(json.dumps(facts, indent=2), encoding="utf-8")
    name = f"{dataset.ref.partition('@')[0]}-validation"
    publish(directory, kind="evaluation", name=name, parents=[dataset], work=work)
