"""An asynchronous reinforcement-learning engine for post-training language models.

The public functions and classes below are what the command line, the Flyte tasks and a notebook call. They are
imported when first used, so `import relax_engine` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relax_engine.checkpoint import export_checkpoint as export_checkpoint
    from relax_engine.checkpoint import import_checkpoint as import_checkpoint
    from relax_engine.config import RunConfig as RunConfig
    from relax_engine.core.evaluate import evaluate as evaluate
    from relax_engine.core.replay import replay as replay
    from relax_engine.core.reproduce import reproduce as reproduce
    from relax_engine.core.train import train as train
    from relax_engine.lineage import ArtifactStore as ArtifactStore
    from relax_engine.simulation import simulate as simulate

__version__ = "0.1.0"

_HOMES = {
    "ArtifactStore": "relax_engine.lineage",
    "RunConfig": "relax_engine.config",
    "evaluate": "relax_engine.core.evaluate",
    "export_checkpoint": "relax_engine.checkpoint",
    "import_checkpoint": "relax_engine.checkpoint",
    "replay": "relax_engine.core.replay",
    "reproduce": "relax_engine.core.reproduce",
    "simulate": "relax_engine.simulation",
    "train": "relax_engine.core.train",
}

__all__ = [
    "ArtifactStore",
    "RunConfig",
    "__version__",
    "evaluate",
    "export_checkpoint",
    "import_checkpoint",
    "replay",
    "reproduce",
    "simulate",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
