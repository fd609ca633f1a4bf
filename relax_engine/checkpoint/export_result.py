"""What an export says about itself."""

from __future__ import annotations

from dataclasses import dataclass

from relax_engine.checkpoint.files import Place


@dataclass(frozen=True, slots=True)
class ExportResult:
    """``path`` is the Hugging Face directory, ``source`` the iteration it was made from; ``nbytes`` counts weights."""

    path: Place
    source: Place
    num_tensors: int
    num_shards: int
    nbytes: int
    dtype: str
