"""Which checkpoint a path or URL means: one iteration, or the newest complete one of a run's root.

What lives here: the same answer for local directories and object storage, where there are no directories to list.
Writing and keeping iterations is `manager.py`'s matter.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from relax_engine.checkpoint.errors import CheckpointNotFoundError
from relax_engine.checkpoint.files import Files, Place, below, files_at, is_url, read_bytes
from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.checkpoint.marker import MARKER, incompleteness

_MARKED = re.compile(rf"(iter_(\d{{7,}}))/{re.escape(MARKER)}")

logger = logging.getLogger(__name__)


def resolve_checkpoint(place: Place) -> Place:
    """The iteration that ``place`` is, or the newest complete one of the run root that it is.

    Raises:
        CheckpointNotFoundError: neither; names what was looked for.
        CheckpointSchemaError: it was written in a layout of another release.
    """
    directory = place if is_url(place) else Path(place)
    files = files_at(directory)
    sizes = files.sizes()
    if not sizes and not (isinstance(directory, Path) and directory.is_dir()):
        raise CheckpointNotFoundError(f"no checkpoint at {place}: no such directory")
    if MARKER in sizes:
        problem = incompleteness(read_bytes(files, MARKER, sizes[MARKER]), sizes, where=str(below(place, MARKER)))
        if problem:
            raise CheckpointNotFoundError(f"checkpoint {place} is not complete: {problem}")
        return directory
    latest = _latest(directory, files, sizes)
    if latest is None:
        raise CheckpointNotFoundError(
            f"no checkpoint at {place}: it has no {MARKER} and no complete iter_NNNNNNN directory; "
            "give the run's root or one of its iterations"
        )
    logger.info("%s is a run root: using its latest complete iteration, %s", place, Path(str(latest)).name)
    return latest


def _latest(directory: Place, files: Files, sizes: dict[str, int]) -> Place | None:
    if isinstance(directory, Path):
        saved = CheckpointManager(directory).latest()
        return saved.path if saved else None
    marked = [match for name in sizes if (match := _MARKED.fullmatch(name))]
    for match in sorted(marked, key=lambda match: int(match[2]), reverse=True):
        inside = {name.removeprefix(f"{match[1]}/"): n for name, n in sizes.items() if name.startswith(f"{match[1]}/")}
        text = read_bytes(files, match[0], sizes[match[0]])
        problem = incompleteness(text, inside, where=str(below(directory, match[0])))
        if problem is None:
            return below(directory, match[1])
        logger.warning("passing over checkpoint %s: %s; looking for an older one", below(directory, match[1]), problem)
    return None
