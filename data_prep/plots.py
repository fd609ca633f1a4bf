"""Plots of a dataset's lengths, scripts and sources: one HTML page with inline SVG, without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from data_prep.report import ValidationReport

_WIDTH, _BAR, _LABEL = 640, 18, 180  # pixels
_BINS = 30


def write_plots(report: ValidationReport, path: Path) -> None:
    """Write the figures that the report has as one page."""
    stats = report.stats
    parts = []
    histogram = stats.get("prompt_tokens_histogram")
    if histogram:
        parts.append(bars("prompt length in tokens", binned(histogram)))
    for name, title in (("scripts", "script of the prompt"), ("sources", "source")):
        parts.append(bars(title, [(label or "(none)", count) for label, count in stats[name].items()]))
    path.parent.mkdir(parents=True, exist_ok=True)
    body = "".join(parts)
    title = escape(f"{report.path}: {report.rows} rows")
    path.write_text(
        f"<!doctype html><meta charset='utf-8'><title>{title}</title><h1>{title}</h1>{body}", encoding="utf-8"
    )


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


def bars(title: str, values: Sequence[tuple[str, int]]) -> str:
    """A horizontal bar chart."""
    top = max((count for _, count in values), default=0) or 1
    rows = []
    for number, (name, count) in enumerate(values):
        y, length = number * _BAR, (_WIDTH - _LABEL - 60) * count / top
        rows.append(
            f"<text x='{_LABEL - 6}' y='{y + 13}' text-anchor='end'>{escape(name[:30])}</text>"
            f"<rect x='{_LABEL}' y='{y + 2}' width='{length:.1f}' height='{_BAR - 4}' fill='#0b57d0'/>"
            f"<text x='{_LABEL + length + 4:.1f}' y='{y + 13}'>{count}</text>"
        )
    height = _BAR * len(values)
    svg = f"<svg width='{_WIDTH}' height='{height}' font-size='11' role='img'>{''.join(rows)}</svg>"
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"
