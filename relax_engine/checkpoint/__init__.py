"""Checkpoints on disk: iteration directories, Hugging Face import and export, weight mappings.

The public functions are loaded when first asked for, so that listing checkpoints imports no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "CheckpointManager": "manager",
    "SavedCheckpoint": "manager",
    "resolve_checkpoint": "resolve",
    "ImportResult": "importer",
    "import_checkpoint": "importer",
    "ExportResult": "export_result",
    "export_checkpoint": "exporter",
}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
