"""Reports: what a person typed cannot become markup, and a chart shows its values."""

from __future__ import annotations

import re

from tasks import html
from tasks.types import ArtifactRef


def test_values_are_escaped() -> None:
    document = html.page("<b>", html.table(("<i>",), [("<script>alert(1)</script>",)]), html.text("a & b"))
    assert "<script>" not in document
    assert "&lt;script&gt;" in document
    assert "a &amp; b" in document


def test_the_chart_maps_low_to_the_bottom_and_high_to_the_top() -> None:
    chart = html.line_chart("reward", [0.0, 0.5, 1.0])
    points = re.search(r"points='([^']+)'", chart)
    assert points is not None
    heights = [float(point.split(",")[1]) for point in points.group(1).split()]
    assert heights == [204.0, 120.0, 36.0]


def test_a_chart_without_values_says_so() -> None:
    assert "no values" in html.line_chart("reward", [])


def test_lineage_names_parents_and_result() -> None:
    parent = ArtifactRef("dataset", "d@v1", "a" * 64, "s")
    text = html.lineage(ArtifactRef("model", "m@v2", "b" * 64, "s"), [parent])
    assert text.index("d@v1") < text.index("m@v2")
    assert "b" * 12 in text
    assert "b" * 13 not in text
