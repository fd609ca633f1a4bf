"""Which media the model of a directory reads."""

from __future__ import annotations

import json
from pathlib import Path

from relax_engine.multimodal.families import MediaFamily, media_family


def family_of(directory: str | Path) -> MediaFamily | None:
    """How the model of a Hugging Face directory reads media; None for a text model.

    Raises:
        OSError: there is no `config.json`.
        ValueError: it is no JSON, or lacks a key.
    """
    return media_family(json.loads((Path(directory) / "config.json").read_text(encoding="utf-8")))
