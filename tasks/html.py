"""HTML for Decks and for the reports stored beside artifacts: tables, figures and one line chart, without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from tasks.types import ArtifactRef

_STYLE = (
    "<style>body{font:14px system-ui,sans-serif;margin:2em;max-width:60em}table{border-collapse:collapse;margin:1em 0}"
    "td,th{border-bottom:1px solid #ddd;padding:.3em .8em;text-align:left}.bad{color:#b00020;font-weight:600}"
    ".ok{color:#1b7f3b}code{background:#f4f4f4;padding:0 .2em}</style>"
)
_WIDTH, _HEIGHT, _MARGIN = 640, 240, 36  # pixels


def page(title: str, *parts: str) -> str:
    """A complete document."""
    return (
        f"<!doctype html><html><head><meta charset='utf-8'><title>{escape(title)}</title>{_STYLE}</head>"
        f"<body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>"
    )


def section(title: str, *parts: str) -> str:
    """A heading and what stands under it."""
    return f"<h2>{escape(title)}</h2>{''.join(parts)}"


def text(value: object, style: str = "") -> str:
    """A paragraph of plain text."""
    return f"<p class='{style}'>{escape(str(value))}</p>"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of plain values."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(_cell(value))}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def figures(values: Mapping[str, Any]) -> str:
    """Names and values, one per line."""
    return table(("figure", "value"), values.items())


def lineage(result: ArtifactRef | None, parents: Sequence[ArtifactRef]) -> str:
    """What was published and what it was made from."""
    rows = [("from", parent.kind, parent.ref, parent.digest[:12]) for parent in parents]
    if result is not None:
        rows.append(("published", result.kind, result.ref, result.digest[:12]))
    return section("Lineage", table(("", "kind", "artifact", "digest"), rows))


def line_chart(title: str, values: Sequence[float], *, low: float = 0.0, high: float | None = None) -> str:
    """Values over their index as an SVG line, with a running mean of a tenth of the length."""
    if not values:
        return text(f"{title}: no values")
    top = max([*values, low + 1e-9]) if high is None else high
    window = max(1, len(values) // 10)
    means = [sum(values[max(0, i - window + 1) : i + 1]) / min(i + 1, window) for i in range(len(values))]
    lines = _polyline(values, low, top, "#bbb", 1) + _polyline(means, low, top, "#0b57d0", 2)
    labels = (
        f"<text x='4' y='{_MARGIN}'>{top:.3g}</text><text x='4' y='{_HEIGHT - _MARGIN}'>{low:.3g}</text>"
        f"<text x='{_WIDTH - _MARGIN}' y='{_HEIGHT - 12}' text-anchor='end'>{len(values)}</text>"
        f"<text x='{_MARGIN}' y='{_HEIGHT - 12}'>1</text>"
    )
    return (
        f"<figure><figcaption>{escape(title)}</figcaption><svg width='{_WIDTH}' height='{_HEIGHT}' "
        f"font-size='11' role='img'>{labels}{lines}</svg></figure>"
    )


def _polyline(values: Sequence[float], low: float, high: float, colour: str, width: int) -> str:
    across = (_WIDTH - 2 * _MARGIN) / max(1, len(values) - 1)
    down = (_HEIGHT - 2 * _MARGIN) / max(1e-12, high - low)
    points = " ".join(
        f"{_MARGIN + i * across:.1f},{_HEIGHT - _MARGIN - (min(max(v, low), high) - low) * down:.1f}"
        for i, v in enumerate(values)
    )
    return f"<polyline fill='none' stroke='{colour}' stroke-width='{width}' points='{points}'/>"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
