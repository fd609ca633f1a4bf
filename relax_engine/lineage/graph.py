"""An artifact's family as a drawing: one self-contained HTML page with an SVG, no script and no outside resource."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from relax_engine.lineage.manifest import Artifact

_MIN_WIDTH, _CHARACTER, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 250, 9, 74, 46, 40, 24  # pixels
_METRICS = 3

_STYLE = """
:root { color-scheme: light dark; --line: #8b949e; --text: #1f2328; --page: #ffffff; --box: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --page: #0d1117; --box: #161b22; } }
body { background: var(--page); color: var(--text); font: 14px system-ui, sans-serif; margin: 24px; }
h1 { font-size: 18px; }
svg text { fill: var(--text); font: 12px system-ui, sans-serif; }
svg .ref { font-weight: 600; font-size: 13px; }
svg .small { font-size: 11px; opacity: 0.8; }
svg path { fill: none; stroke: var(--line); stroke-width: 1.5; }
svg rect { fill: var(--box); stroke-width: 2; }
.dataset rect { stroke: #1a7f37; } .checkpoint rect { stroke: #9a6700; } .run rect { stroke: #0969da; }
.evaluation rect { stroke: #8250df; } .model rect { stroke: #cf222e; } .subject rect { stroke-width: 4; }
"""


@dataclass(frozen=True, slots=True)
class _Place:
    x: int
    y: int


def render_html(subject: Artifact, family: Sequence[Artifact]) -> str:
    """The page for `subject` and its `family`: every ancestor and descendant to be drawn, in any order.

    Parents stand above their children; an edge is drawn where both ends are in the family.
    """
    members = {artifact.ref: artifact for artifact in (subject, *family)}
    box_width = max(_MIN_WIDTH, 20 + _CHARACTER * max(map(len, members)))
    places = _places(members, box_width)
    width = max(place.x for place in places.values()) + box_width + _MARGIN
    height = max(place.y for place in places.values()) + _HEIGHT + _MARGIN
    title = html.escape(f"Lineage of {subject.ref}")
    edges = "\n".join(_edge(places[parent], places[child], box_width) for child, parent in _edges(members))
    drawn = (_box(members[ref], places[ref], box_width, chosen=ref == subject.ref) for ref in members)
    boxes = "\n".join(drawn)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f'<body><h1>{title}</h1>\n<svg width="{width}" height="{height}" role="img" aria-label="{title}">\n'
        f"{edges}\n{boxes}\n</svg></body></html>\n"
    )


def _edges(members: Mapping[str, Artifact]) -> Iterable[tuple[str, str]]:
    for ref, artifact in members.items():
        for link in artifact.parents:
            if link.ref in members:
                yield ref, link.ref


def _places(members: Mapping[str, Artifact], width: int) -> dict[str, _Place]:
    """Rows by the longest way from a root, columns in the order of creation."""
    depth: dict[str, int] = {}

    def measure(ref: str) -> int:
        if ref not in depth:
            above = [measure(link.ref) for link in members[ref].parents if link.ref in members]
            depth[ref] = 1 + max(above, default=-1)
        return depth[ref]

    rows: dict[int, int] = {}
    places = {}
    for ref in sorted(members, key=lambda ref: (members[ref].created_at, ref)):
        row = measure(ref)
        column = rows[row] = rows.get(row, -1) + 1
        places[ref] = _Place(_MARGIN + column * (width + _GAP_X), _MARGIN + row * (_HEIGHT + _GAP_Y))
    return places


def _edge(parent: _Place, child: _Place, width: int) -> str:
    x1, y1, x2, y2 = parent.x + width // 2, parent.y + _HEIGHT, child.x + width // 2, child.y
    bend = (y2 - y1) // 2
    return f'<path d="M{x1} {y1} C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}"/>'


def _box(artifact: Artifact, place: _Place, width: int, *, chosen: bool) -> str:
    metrics = "  ".join(f"{key}={value:.4g}" for key, value in sorted(artifact.metrics.items())[:_METRICS])
    commit = artifact.producer.get("git_commit")
    lines = [
        ("small", f"{artifact.kind}  {artifact.short_digest}"),
        ("ref", artifact.ref),
        ("small", f"{artifact.created_at[:19]}Z" + (f"  code {commit[:10]}" if commit else "")),
        ("small", metrics),
    ]
    text = "".join(
        f'<text class="{style}" x="{place.x + 10}" y="{place.y + 17 + 16 * index}">{html.escape(line)}</text>'
        for index, (style, line) in enumerate(lines)
    )
    figures = [f"{key} = {value:.6g}" for key, value in sorted(artifact.metrics.items())]
    tip = html.escape("\n".join([artifact.ref, f"sha256 {artifact.digest}", *figures]))
    classes = f"{artifact.kind} subject" if chosen else artifact.kind
    return (
        f'<g class="{classes}"><title>{tip}</title>'
        f'<rect x="{place.x}" y="{place.y}" width="{width}" height="{_HEIGHT}" rx="6"/>{text}</g>'
    )
