"""Showing a report in Flyte's Deck and keeping it: the same HTML goes to both."""

from __future__ import annotations

from pathlib import Path

from tasks.html import page
from tasks.store import work_root


def show(title: str, *parts: str) -> str:
    """Add a Deck to the running task; returns the same report as a complete HTML document."""
    from flytekit import Deck

    Deck(title, "".join(parts))
    return page(title, *parts)


def show_failure(name: str, title: str, *parts: str) -> Path:
    """Show a report of a task that is about to fail, and keep it where nothing is published.

    Flyte writes Decks after success only, so this one is written at once.

    Returns:
        The HTML file, in the working directory.
    """
    from flytekit import Deck, current_context

    document = show(title, *parts)
    path = work_root() / "failed" / f"{name}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document, encoding="utf-8")
    if current_context().enable_deck:
        Deck.publish()
    return path
