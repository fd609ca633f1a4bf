"""Plots of a dataset's lengths, scripts and sources, and one HTML page of them, without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from data_prep.report import ValidationReport
from relax_engine.utils.svg import bar_chart

_BINS = 30


def plots(report: ValidationReport) -> dict[str, str]:
    """SVG by title: of prompt lengths, where they were counted, of scripts and of sources."""
    stats = report.stats
    pictures = {}
    if stats.get("prompt_tokens_histogram"):
        title = "prompt length in tokens"
        pictures[title] = bar_chart(title, binned(stats["prompt_tokens_histogram"]))
    for name, title in (("scripts", "script of the prompt"), ("sources", "source")):
        if stats.get(name):
            pictures[title] = bar_chart(title, [(label or "(none)", count) for label, count in stats[name].items()])
    return pictures


def write_plots(report: ValidationReport, path: Path) -> None:
    """Write the figures that the report has as one page."""
    figures = (
        f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>" for title, svg in plots(report).items()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    title = escape(f"{report.path}: {report.rows} rows")
    head = f"<!doctype html><meta charset='utf-8'><title>{title}</title><h1>{title}</h1>"
    path.write_text(head + "".join(figures), encoding="utf-8")


def binned(histogram: Sequence[tuple[int, int]]) -> list[tuple[str, int]]:
    """At most `_BINS` ranges of equal width and their counts, of sorted `(value, count)`."""
    low, high = histogram[0][0], histogram[-1][0]
    width = max(1, -(-(high - low + 1) // _BINS))
    counts = [0] * ((high - low) // width + 1)
    for value, count in histogram:
        counts[(value - low) // width] += count
    starts = (low + number * width for number in range(len(counts)))
    names = (str(start) if width == 1 else f"{start} to {start + width - 1}" for start in starts)
    return list(zip(names, counts, strict=True))
