"""Which files and rows a specification names: paths, directories, globs, slices, lists and URLs of them.

What lives here: the notation of `--prompt-data` and of `relax data`. What does not: opening files (`files`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import DataError

PARQUET, JSONL, JSON = ".parquet", ".jsonl", ".json"
KINDS = {PARQUET: PARQUET, JSONL: JSONL, ".ndjson": JSONL, JSON: JSON}
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")

_SLICE = re.compile(r"^(?P<path>.+)\[(?P<start>\d*):(?P<stop>\d*)\]$")
_PATTERN = re.compile(r"[*?]|\[[^\]:]+\]")

Spec = str | Path | Sequence[str]


@dataclass(frozen=True, slots=True)
class Source:
    """One file (a path or an fsspec URL) and the wanted rows `[start, stop)` of it; `stop=None` is its end."""

    path: str
    start: int = 0
    stop: int | None = None

    def __str__(self) -> str:
        if not self.start and self.stop is None:
            return self.path
        return f"{self.path}[{self.start}:{'' if self.stop is None else self.stop}]"

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def compression(self) -> str | None:
        """`.gz` and the like, or None."""
        suffix = Path(self.name).suffix.lower()
        return suffix if suffix in COMPRESSIONS else None

    @property
    def kind(self) -> str:
        """`.parquet`, `.jsonl` (one object a line) or `.json` (an array of objects, or one a line), by the ending.

        Raises:
            DataError: an unknown ending, or a compressed Parquet file (which is compressed inside).
        """
        name = Path(self.name.removesuffix(Path(self.name).suffix) if self.compression else self.name)
        kind = KINDS.get(name.suffix.lower())
        if kind is None or (kind == PARQUET and self.compression):
            suffix = "".join(Path(self.name).suffixes[-2:]) if self.compression else name.suffix
            known = f"{', '.join(sorted(KINDS))}, the JSON ones also with {', '.join(COMPRESSIONS)}"
            raise DataError(f"data file {self.path!r}: unknown format {suffix!r}; known: {known}")
        return kind


def parse_spec(spec: Spec) -> list[Source]:
    """Files named by a path, URL, directory, glob, slice (`data.parquet[100:200]`), or a list (literal) of these.

    A directory or glob stands for the data files it holds, by name. Files are not opened, and those that are named one
    by one need not exist.

    Raises:
        DataError: a list literal that is none.
    """
    return [source for name in _names(spec) for source in _expand(name)]


def parse_sources(spec: Spec) -> list[Source]:
    """`parse_spec`, of files that exist and have a known ending.

    Raises:
        DataError: nothing named, or a file that does not exist or has an unknown ending.
    """
    from data_prep.files import exists

    sources = parse_spec(spec)
    if not sources:
        names = ", ".join(_names(spec))
        raise DataError(f"{names or 'an empty list'} holds no data file; give a Parquet or JSON file, or a folder")
    for source in sources:
        if not exists(source.path):
            raise DataError(f"data file {source.path!r} does not exist")
        source.kind  # noqa: B018 - says what is wrong with the ending
    return sources


def _names(spec: Spec) -> list[str]:
    if isinstance(spec, Path):
        return [str(spec)]
    if not isinstance(spec, str):
        return [name for entry in spec for name in _names(entry)]
    text = spec.strip()
    if not text.startswith("["):
        return [text]
    try:
        names = ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise DataError(f"{spec!r} is not a list of paths: {error}") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{spec!r} is not a list of paths: every entry must be a string")
    return names


def _expand(name: str) -> list[Source]:
    from data_prep.files import exists, is_directory, matching

    match = _SLICE.match(name)
    start, stop = 0, None
    if match is not None:
        name, start = match["path"], int(match["start"] or 0)
        stop = int(match["stop"]) if match["stop"] else None
    elif is_directory(name):
        return [source for path in matching(f"{name.rstrip('/')}/*") if _readable(source := Source(path))]
    if _PATTERN.search(name) and not exists(name):
        found = [Source(path, start, stop) for path in matching(name)] or [Source(name, start, stop)]
        if match is not None and len(found) > 1:
            raise DataError(f"{name!r} names {len(found)} files, and a slice is of one: slice each by its name")
        return [source for source in found if len(found) == 1 or _readable(source)]
    return [Source(name, start, stop)]


def _readable(source: Source) -> bool:
    try:
        return bool(source.kind)
    except DataError:
        return False
