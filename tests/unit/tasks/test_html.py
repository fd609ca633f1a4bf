"""Reports: what a person typed cannot become markup."""

from __future__ import annotations

from tasks import html
from tasks.types import ArtifactRef


def test_values_are_escaped() -> None:
    document = html.page("<b>", html.table(("<i>",), [("<script>alert(1)</script>",)]), html.text("a & b"))
    assert "<script>" not in document
    assert "&lt;script&gt;" in document
    assert "a &amp; b" in document


def test_a_picture_stands_under_its_title() -> None:
    assert html.figure("a < b", "<svg/>") == "<figure><figcaption>a &lt; b</figcaption><svg/></figure>"


def test_lineage_names_parents_and_result() -> None:
    parent = ArtifactRef("dataset", "d@v1", "a" * 64, "s")
    text = html.lineage(ArtifactRef("model", "m@v2", "b" * 64, "s"), [parent])
    assert text.index("d@v1") < text.index("m@v2")
    assert "b" * 12 in text
    assert "b" * 13 not in text
