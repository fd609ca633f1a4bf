"""HTML for Decks and for the reports stored beside artifacts: tables and pictures, without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from tasks.types import ArtifactRef

_STYLE = (
    "<style>body{font:14px system-ui,sans-serif;margin:2em;max-width:60em}table{border-collapse:collapse;margin:1em 0}"
    "td,th{border-bottom:1px solid #ddd;padding:.3em .8em;text-align:left}.bad{color:#b00020;font-weight:600}"
    ".ok{color:#1b7f3b}code{background:#f4f4f4;padding:0 .2em}figure{margin:1.5em 0}svg{max-width:100%;height:auto}"
    "td{overflow-wrap:anywhere;vertical-align:top}</style>"
)


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


def figure(title: str, picture: str) -> str:
    """An SVG picture under its title."""
    return f"<figure><figcaption>{escape(title)}</figcaption>{picture}</figure>"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
