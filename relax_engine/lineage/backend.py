"""The few operations an artifact store needs from where it is kept, and the choice of it by URL.

A backend keeps immutable objects and a few mutable documents under slash-separated keys. Two of its
operations are conditional and must hold across processes and hosts: ``put_if_absent`` and
``compare_and_swap``; everything the store promises to concurrent writers rests on these two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar
from urllib.parse import urlsplit

from relax_engine.lineage.errors import StoreUrlError

_REQUESTS = 16
"""Requests under way at once where many are wanted: a bucket answers each after milliseconds."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Stored:
    """A document and the token that names this state of it (a content hash, an ETag)."""

    data: bytes
    token: str


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What a writer began and has not completed: for which key, when (seconds since the epoch), and how to drop it."""

    key: str
    began: float
    discard: Callable[[], object]


class Backend(Protocol):
    """Object storage with conditional writes. A key is visible completely or not at all."""

    url: str
    cache_directory: Path | None
    """Where checkouts are kept when the store has a place of its own for them."""

    def get(self, key: str) -> Stored | None:
        """The document, or None when the key does not exist."""

    def exists(self, key: str) -> bool:
        """Whether the key exists."""

    def modified(self, key: str) -> float | None:
        """When the object was written or renewed, seconds since the epoch; None when it does not exist."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the key; False (and no change) when it exists."""

    def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> bool:
        """Replace the document whose token is ``expected`` (None: create it); False when it is another by now."""

    def list(self, prefix: str) -> Iterator[str]:
        """Keys that begin with ``prefix``, sorted. The prefix holds at least one whole folder."""

    def list_modified(self, prefix: str) -> Iterator[tuple[str, float]]:
        """The same keys, each with what ``modified`` says of it."""

    def open(self, key: str) -> BinaryIO:
        """The object's bytes as a stream. Raises FileNotFoundError."""

    def upload(self, source: Path, key: str, sha256: str) -> None:
        """Stream a file to an immutable key (no change when it exists).

        Raises SourceChangedError when the bytes read do not hash to ``sha256``.
        """

    def download(self, key: str, destination: Path) -> None:
        """Place the object at ``destination`` (read-only; may share storage). Raises FileNotFoundError."""

    def renew(self, key: str) -> None:
        """Make ``modified`` now. Raises FileNotFoundError."""

    def remove(self, key: str) -> None:
        """Delete the key; nothing happens when it does not exist."""

    def unfinished(self) -> Iterator[Unfinished]:
        """Writes that were begun and not completed, by writers that live or that were killed."""


def at_once(request: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """What `request` returns for each item, in their order; several requests are under way at a time.

    Not to be called from within a `request`: the number of threads would multiply.
    """
    if len(items) < 2:
        return [request(item) for item in items]
    with ThreadPoolExecutor(min(_REQUESTS, len(items))) as threads:
        return list(threads.map(request, items))


def open_backend(url: str, *, create: bool) -> Backend:
    """The backend for a root URL: a plain path, ``file://``, or ``s3://bucket/prefix``.

    Raises:
        StoreUrlError: a scheme without conditional writes here, or no store there and ``create`` is False.
    """
    parts = urlsplit(url)
    if parts.scheme == "s3":
        from relax_engine.lineage.s3 import S3Backend

        return S3Backend(parts.netloc, parts.path, create=create)
    if parts.scheme not in ("", "file"):
        raise StoreUrlError(
            f"cannot keep artifacts at {url!r}: scheme {parts.scheme!r} has no backend with compare-and-swap; "
            "set RELAX_ARTIFACTS to a directory, a file:// or an s3:// URL"
        )
    from relax_engine.lineage.local import LocalBackend

    return LocalBackend(Path(parts.path if parts.scheme else url), create=create)
