"""`--save` and `--load` with a URL: a run saves locally, and a thread beside it copies to the URL and back."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

from relax_engine.checkpoint.mirror import CheckpointMirror
from relax_engine.config import RunConfig
from relax_engine.utils.object_store import is_url, unreachable

_POLL_S = 1.0

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def local_checkpoints(config: RunConfig, run_dir: Path) -> Iterator[RunConfig]:
    """The configuration with local directories in the place of URLs, which are kept up to date while the block runs.

    `--save URL` saves into `checkpoints` of the run directory; each complete checkpoint is copied, the last one before
    the block ends, also where it ends with an error. `--load URL` fetches the newest checkpoint first.

    Raises:
        DamagedCheckpointError: what was fetched is not what was copied.
        OSError: the URL does not answer when the run begins, or when it has come to its end.
    """
    flat = config.flat
    places = {url: run_dir / "checkpoints" for url in (flat.save,) if url is not None and is_url(url)}
    if flat.load is not None and is_url(flat.load):
        places.setdefault(flat.load, run_dir / "loaded")
    if not places:
        yield config
        return
    mirrors = {url: CheckpointMirror(url, place, run_dir) for url, place in places.items()}
    if flat.load in mirrors:
        mirrors[flat.load].pull()
    changes = {name: str(places[url]) for name in ("save", "load") if (url := getattr(flat, name)) in places}
    for name in ("critic_save", "critic_load"):
        url, _, tail = (getattr(flat, name) or "").rpartition("/")
        if url in places:
            changes[name] = str(places[url] / tail)
    with _copying(mirrors[flat.save]) if flat.save in mirrors else contextlib.nullcontext():
        yield config.replace(**changes)


@contextlib.contextmanager
def _copying(mirror: CheckpointMirror) -> Iterator[None]:
    ended = threading.Event()

    def copy() -> None:
        while not ended.wait(_POLL_S):
            try:
                mirror.push()
            except unreachable() as error:
                logger.warning("could not copy checkpoints to %s, trying again: %s", mirror.url, error)

    thread = threading.Thread(target=copy, name="checkpoint-mirror", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        mirror.push()
