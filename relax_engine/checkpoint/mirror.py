"""Checkpoints on object storage: every complete one is copied to a URL, the newest comes back to a new machine.

A run saves into a local directory as ever (``manager.py``); what lives here is the copy. Under the URL::

    iter_0000100/<file> ...       a checkpoint's files
    iter_0000100/mirror.json      size and SHA-256 of each, written last: without it the copy does not count
    iter_0000100/run/<file> ...   the run's own logs up to that checkpoint
    critic/iter_0000100/...       the critic's, where there is one

The copy is behind the local directory by the time of an upload, so a machine that is lost loses the steps since
the last checkpoint *there*. One process writes at a time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from pathlib import Path
from typing import Any

from relax_engine.checkpoint.durable import remove_tree, sync_path, sync_tree
from relax_engine.checkpoint.errors import DamagedCheckpointError
from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.utils.object_store import open_filesystem

MIRROR_SCHEMA = 1
MARK = "mirror.json"
RUN_LOGS = ("metrics.jsonl", "eval.jsonl", "trained_rows.jsonl")
_CHUNK_BYTES = 1 << 20

logger = logging.getLogger(__name__)


class CheckpointMirror:
    """The copy under ``url`` of the checkpoints in ``local``, with the logs in ``run_dir`` that belong to them."""

    def __init__(self, url: str, local: Path, run_dir: Path) -> None:
        self.url = url.rstrip("/")
        self.local = local
        self.run_dir = run_dir
        self._fs, self._root = open_filesystem(self.url)
        self._there: set[str] | None = None
        """Complete ones there; listed once, since nobody else writes."""
        self._held: set[str] = set()
        """Names that were here and there during this run; the run's own pruning is repeated there."""

    def pull(self) -> int | None:
        """Bring the newest checkpoint here, unless one as new is here already; returns its iteration.

        With a critic, the newest that both have. The run's logs come along where there are none.

        Raises:
            DamagedCheckpointError: a file's bytes are not those that were copied.
        """
        there = self._complete()
        roots = {name.rpartition("iter_")[0] for name in there}
        shared = set.intersection(*({_iteration(n) for n in there if _root(n) == root} for root in roots or {""}))
        here = CheckpointManager(self.local).latest()
        if not shared or (here is not None and here.iteration >= max(shared)):
            return None
        newest = max(shared)
        for root in sorted(roots, reverse=True):
            self._fetch(f"{root}iter_{newest:07d}")
        return newest

    def push(self) -> list[str]:
        """Copy every complete checkpoint that is not there yet; returns their names.

        Raises:
            OSError: the URL does not answer. Nothing counts that is not whole; the next call goes on.
        """
        here = self._local()
        if self._there is None:
            self._there = self._complete()
        new = [name for name in sorted(here, key=_order) if name not in self._there]
        for name in new:
            self._store(name, here[name])
            self._there.add(name)
        for name in self._held - here.keys():
            self._remove(name)
            self._there.discard(name)
        self._held = set(here)
        return new

    def _local(self) -> dict[str, Path]:
        """Complete checkpoints here, by their path under the root; the critic's too."""
        roots = [self.local, self.local / "critic"]
        found = [saved.path for root in roots for saved in CheckpointManager(root).complete()]
        return {path.relative_to(self.local).as_posix(): path for path in found if not path.name.endswith(".replaced")}

    def _complete(self) -> set[str]:
        if not self._fs.exists(self._root):
            return set()
        marks = [path for path in self._fs.find(self._root) if path.endswith(f"/{MARK}")]
        return {path[len(self._root) :].strip("/").removesuffix(f"/{MARK}") for path in marks}

    def _store(self, name: str, directory: Path) -> None:
        place = f"{self._root}/{name}"
        files = {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*"))}
        entries = {}
        for relative, path in files.items():
            if path.is_file():
                self._fs.put_file(str(path), f"{place}/{relative}")
                entries[relative] = {"size": path.stat().st_size, "sha256": _sha256(path)}
        for log in RUN_LOGS:
            if (self.run_dir / log).is_file():
                data = (self.run_dir / log).read_bytes()
                self._fs.pipe_file(f"{place}/run/{log}", data)
                entries[f"run/{log}"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        self._fs.pipe_file(f"{place}/{MARK}", json.dumps({"schema": MIRROR_SCHEMA, "files": entries}).encode())
        logger.info("copied checkpoint %s to %s/%s", directory, self.url, name)

    def _fetch(self, name: str) -> None:
        place = f"{self._root}/{name}"
        mark: dict[str, Any] = json.loads(self._fs.cat_file(f"{place}/{MARK}"))
        final = self.local / name
        staged = final.with_name(f"{final.name}.partial")
        shutil.rmtree(staged, ignore_errors=True)
        for relative, entry in mark["files"].items():
            target = staged / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            self._fs.get_file(f"{place}/{relative}", str(target))
            if _sha256(target) != entry["sha256"]:
                raise DamagedCheckpointError(
                    f"{self.url}/{name}/{relative} has {target.stat().st_size} bytes with sha256 {_sha256(target)}, "
                    f"{entry['size']} with {entry['sha256']} were copied: remove {self.url}/{name} to resume earlier"
                )
        for log in (staged / "run").glob("*"):
            if not (self.run_dir / log.name).exists():
                self.run_dir.mkdir(parents=True, exist_ok=True)
                shutil.move(log, self.run_dir / log.name)
        shutil.rmtree(staged / "run", ignore_errors=True)
        sync_tree(staged)
        if final.exists():
            remove_tree(final)
        staged.rename(final)
        sync_path(final.parent)
        self._held.add(name)
        logger.info("fetched checkpoint %s/%s to %s", self.url, name, final)

    def _remove(self, name: str) -> None:
        """The mark goes first: what is half removed does not count."""
        place = f"{self._root}/{name}"
        if self._fs.exists(f"{place}/{MARK}"):
            self._fs.rm_file(f"{place}/{MARK}")
            self._fs.rm(place, recursive=True)


def _root(name: str) -> str:
    return name.rpartition("iter_")[0]


def _iteration(name: str) -> int:
    return int(name.rpartition("iter_")[2])


def _order(name: str) -> tuple[int, bool]:
    """By iteration; the critic's before the actor's, whose presence says that both are there."""
    return _iteration(name), _root(name) == ""


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_CHUNK_BYTES):
            digest.update(block)
    return digest.hexdigest()
