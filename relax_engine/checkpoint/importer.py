"""From a Hugging Face directory to a Megatron distributed checkpoint, parameter by parameter.

No model is built and no process group is needed. The result is a run root with iteration 0, which
``MegatronBackend.load(optimizer=False)`` reads under any parallel layout.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from relax_engine.checkpoint.dcp_layout import extra_state_keys, locate
from relax_engine.checkpoint.dcp_writer import DcpWriter
from relax_engine.checkpoint.dtypes import parse_dtype
from relax_engine.checkpoint.errors import OutputExistsError
from relax_engine.checkpoint.hf_reader import HfReader
from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.checkpoint.mapping import WeightMap
from relax_engine.checkpoint.progress import byte_progress

IMPORTED_ITERATION = 0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ImportResult:
    """``root`` can be given to ``--load``; ``path`` is its one iteration. ``nbytes`` counts weights."""

    root: Path
    path: Path
    architecture: str
    num_parameters: int
    nbytes: int


def import_checkpoint(hf_dir: Path | str, out_dir: Path | str, *, dtype: str | None = None) -> ImportResult:
    """Convert a Hugging Face model directory (safetensors) to ``out_dir/iter_0000000``.

    Memory: the largest parameter, about three times while it is written.

    Args:
        dtype: float32, bfloat16 or float16; None keeps each tensor's type.

    Raises:
        OutputExistsError: ``out_dir`` is not empty.
        CheckpointNotFoundError: no ``config.json`` or no safetensors in ``hf_dir``.
        UnknownArchitectureError, UnsupportedModelError: the model has no mapping.
        DamagedCheckpointError, WeightMappingError: tensors missing, unexpected, truncated or misshapen.
    """
    target = parse_dtype(dtype)
    root = Path(out_dir)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise OutputExistsError(f"{root} exists and is not empty; choose another output or remove it")
    reader = HfReader(hf_dir)
    weights = WeightMap(reader.spec)
    reader.check_against(weights)
    manager = CheckpointManager(root)
    total = sum(math.prod(mapping.shape) for mapping in weights.parameters.values())
    nbytes = 0
    with (
        manager.writing(IMPORTED_ITERATION) as directory,
        DcpWriter(directory) as writer,
        byte_progress(f"import {reader.directory.name}", reader.file_bytes) as advance,
    ):
        for name in weights.parameters:
            parts = [reader.tensor(hf_name) for hf_name in weights.parameters[name].hf_names]
            full = weights.merge(name, parts)
            full = full if target is None else full.to(target)
            _write(writer, reader.spec.num_layers, name, full)
            nbytes += full.nbytes
            advance(sum(part.nbytes for part in parts))
        for key in extra_state_keys(reader.spec.num_layers):
            writer.add_object(key, None)
    logger.info("imported %s: %d parameters, %.1f MB", reader.spec.architecture, total, nbytes / 1e6)
    return ImportResult(root, manager.path(IMPORTED_ITERATION), reader.spec.architecture, total, nbytes)


def _write(writer: DcpWriter, num_layers: int, name: str, full: Tensor) -> None:
    key, layer = locate(name)
    if layer is None:
        writer.add_tensor(key, full.shape, (0,) * full.dim(), full)
    else:
        writer.add_tensor(key, (num_layers, *full.shape), (layer, *(0,) * full.dim()), full[None])
