"""From a Hugging Face directory to a Megatron distributed checkpoint, parameter by parameter.

No model is built and no process group is needed. The result is a run root with iteration 0, which
``MegatronBackend.load(optimizer=False)`` reads under any parallel layout.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from relax_engine.checkpoint.dcp_layout import extra_state_keys, locate
from relax_engine.checkpoint.dcp_writer import DcpWriter
from relax_engine.checkpoint.dtypes import parse_dtype
from relax_engine.checkpoint.files import Place, below, files_at, is_url
from relax_engine.checkpoint.hf_reader import HfReader
from relax_engine.checkpoint.manager import CheckpointManager, iteration_name
from relax_engine.checkpoint.mapping import WeightMap
from relax_engine.checkpoint.marker import MARKER, Marker
from relax_engine.checkpoint.output import LocalOutput, Output, refuse_existing, writing
from relax_engine.checkpoint.progress import byte_progress

IMPORTED_ITERATION = 0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ImportResult:
    """``root`` can be given to ``--load``; ``path`` is its one iteration. ``nbytes`` counts weights."""

    root: Place
    path: Place
    architecture: str
    num_parameters: int
    nbytes: int


def import_checkpoint(hf_dir: Place, out_dir: Place, *, dtype: str | None = None) -> ImportResult:
    """Convert a Hugging Face model directory (safetensors) to ``out_dir/iter_0000000``.

    Both places may be directories or URLs of object storage. Memory: the largest parameter, twice. Local disk for a
    remote output: one `.distcp` file of about 4 GiB.

    Args:
        dtype: float32, bfloat16 or float16; None keeps each tensor's type.

    Raises:
        OutputExistsError: ``out_dir`` is not empty.
        CheckpointNotFoundError: no ``config.json`` or no safetensors in ``hf_dir``.
        UnknownArchitectureError, UnsupportedModelError: the model has no mapping.
        DamagedCheckpointError, WeightMappingError: tensors missing, unexpected, truncated or misshapen.
    """
    target = parse_dtype(dtype)
    refuse_existing(out_dir)
    reader = HfReader(hf_dir)
    weights = WeightMap(reader.spec)
    reader.check_against(weights)
    total = sum(math.prod(mapping.shape) for mapping in weights.parameters.values())
    nbytes = 0
    with (
        _iteration(out_dir) as output,
        DcpWriter(output) as writer,
        byte_progress(f"import {reader.place}", reader.file_bytes) as advance,
    ):
        for name, mapping in weights.parameters.items():
            full = weights.merge(name, [reader.tensor(hf_name) for hf_name in mapping.hf_names])
            read_bytes = full.nbytes
            full = full if target is None or mapping.wide else full.to(target)
            key, rows, sizes = locate(name, reader.spec)
            writer.add_tensor(key, (*sizes, *full.shape), (*rows, *(0,) * full.dim()), full[(None,) * len(rows)])
            nbytes += full.nbytes
            advance(read_bytes)
        for key in extra_state_keys(weights):
            writer.add_object(key, None)
    logger.info("imported %s: %d parameters, %.1f MB", reader.spec.architecture, total, nbytes / 1e6)
    root = str(out_dir) if is_url(out_dir) else Path(out_dir)
    path = below(root, iteration_name(IMPORTED_ITERATION))
    return ImportResult(root, path, reader.spec.architecture, total, nbytes)


@contextlib.contextmanager
def _iteration(root: Place) -> Iterator[Output]:
    """The directory of the imported iteration; complete when the block ends without an exception."""
    if not is_url(root):
        with CheckpointManager(Path(root)).writing(IMPORTED_ITERATION, optimizer=False) as directory:
            yield LocalOutput(directory)
        return
    place = below(root, iteration_name(IMPORTED_ITERATION))
    with writing(place, mark=MARKER) as output:
        yield output
        marker = Marker(IMPORTED_ITERATION, files_at(place).sizes(), optimizer=False)
        with output.file(MARKER) as path:
            path.write_text(marker.to_json(), encoding="utf-8")
