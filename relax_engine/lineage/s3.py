"""The artifact store's backend on S3-compatible object storage.

``put_if_absent`` is a PUT with ``If-None-Match: *``, ``compare_and_swap`` one with ``If-Match``; a server that
ignores these headers is refused when the store is opened, since two writers could lose a version on it.
Region, endpoint and credentials come from where the AWS tools read them (``AWS_ENDPOINT_URL``,
``AWS_ACCESS_KEY_ID``, ``~/.aws``, instance roles).
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import s3fs
from fsspec.asyn import sync

from relax_engine.lineage.backend import Stored, Unfinished
from relax_engine.lineage.errors import SourceChangedError, StoreUrlError
from relax_engine.lineage.hashing import chunks
from relax_engine.utils.object_store import S3_CONFIG

_PART_BYTES = 16 << 20
_REJECTED = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}
_READ_ONLY = 0o444


class S3Backend:
    """Objects under one prefix of a bucket."""

    cache_directory: Path | None = None

    def __init__(self, bucket: str, prefix: str, *, create: bool) -> None:
        """Connect, and where ``create`` make sure that the server keeps conditional writes.

        Raises:
            StoreUrlError: the bucket does not answer, holds no store and ``create`` is False, or its server
                overwrites an object that it was told not to.
        """
        self._bucket, self._root = bucket, prefix.strip("/")
        self.url = f"s3://{bucket}" + (f"/{self._root}" if self._root else "")
        self._fs = s3fs.S3FileSystem(use_listings_cache=False, config_kwargs=S3_CONFIG)
        try:
            self._call("list_objects_v2", Bucket=bucket, Prefix=self._key("store.json"), MaxKeys=1)
        except OSError as error:
            raise StoreUrlError(
                f"cannot reach {self.url}: {error}; check the bucket's name, AWS_ENDPOINT_URL and the credentials"
            ) from error
        if not create and not self.exists("store.json"):
            raise StoreUrlError(f"no artifact store at {self.url}; publishing an artifact creates it")
        if create and not self.exists("store.json"):
            self._check_conditional_writes()

    def get(self, key: str) -> Stored | None:
        """The document, or None when the key does not exist."""

        async def read() -> Stored:
            answer = await self._fs._call_s3("get_object", Bucket=self._bucket, Key=self._key(key))
            async with answer["Body"] as body:
                return Stored(await body.read(), _token(answer))

        try:
            return cast(Stored, sync(self._fs.loop, read))
        except FileNotFoundError:
            return None

    def exists(self, key: str) -> bool:
        """Whether the key exists."""
        return self.modified(key) is not None

    def modified(self, key: str) -> float | None:
        """When the object was written, by the server's clock; None when it does not exist."""
        try:
            answer = self._call("head_object", Bucket=self._bucket, Key=self._key(key))
        except FileNotFoundError:
            return None
        return float(answer["LastModified"].timestamp())

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the key; False (and no change) when it exists."""
        return self._put(key, data, IfNoneMatch="*")

    def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> bool:
        """Replace the document whose token is ``expected`` (None: create it); False when it is another by now."""
        if expected is None:
            return self.put_if_absent(key, data)
        return self._put(key, data, IfMatch=expected)

    def list(self, prefix: str) -> Iterator[str]:
        """Keys that begin with ``prefix``, sorted. The prefix holds at least one whole folder."""
        return (key for key, _ in self.list_modified(prefix))

    def list_modified(self, prefix: str) -> Iterator[tuple[str, float]]:
        """The same keys, each with what ``modified`` says of it."""
        request: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._key(prefix)}
        while True:
            answer = self._call("list_objects_v2", **request)
            for entry in answer.get("Contents", ()):
                yield self._relative(entry["Key"]), entry["LastModified"].timestamp()
            if not answer.get("IsTruncated"):
                return
            request["ContinuationToken"] = answer["NextContinuationToken"]

    def open(self, key: str) -> BinaryIO:
        """The object's bytes as a stream. Raises FileNotFoundError."""
        return cast(BinaryIO, self._fs.open(self._path(key), "rb", block_size=_PART_BYTES, cache_type="readahead"))

    def upload(self, source: Path, key: str, sha256: str) -> None:
        """Stream a file to an immutable key (no change when it exists), in parts where it is large.

        The object appears only when all of it was read and has the expected hash.
        """
        if self.exists(key):
            return
        digest = hashlib.sha256()
        writer = self._fs.open(self._path(key), "wb", block_size=_PART_BYTES, autocommit=False)
        try:
            with source.open("rb") as reader:
                for block in chunks(reader):
                    digest.update(block)
                    writer.write(block)
            if digest.hexdigest() != sha256:
                raise SourceChangedError(f"{source} changed while it was being published; publish again when it rests")
            writer.close()
            writer.commit()
        except BaseException:
            writer.discard()
            raise

    def download(self, key: str, destination: Path) -> None:
        """Copy the object to ``destination``. Raises FileNotFoundError."""
        destination.parent.mkdir(parents=True, exist_ok=True)
        self._fs.get_file(self._path(key), str(destination))
        destination.chmod(_READ_ONLY)

    def renew(self, key: str) -> None:
        """Make ``modified`` now, by copying the object onto itself. Raises FileNotFoundError."""
        self._fs.cp_file(self._path(key), self._path(key), MetadataDirective="REPLACE")

    def remove(self, key: str) -> None:
        """Delete the key; nothing happens when it does not exist."""
        self._call("delete_object", Bucket=self._bucket, Key=self._key(key))

    def unfinished(self) -> Iterator[Unfinished]:
        """Multi-part uploads that were begun and not completed."""
        request: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._key("")}
        while True:
            answer = self._call("list_multipart_uploads", **request)
            for upload in answer.get("Uploads", ()):
                began: datetime.datetime = upload["Initiated"]
                discard = functools.partial(
                    self._call,
                    "abort_multipart_upload",
                    Bucket=self._bucket,
                    Key=upload["Key"],
                    UploadId=upload["UploadId"],
                )
                yield Unfinished(self._relative(upload["Key"]), began.timestamp(), discard)
            if not answer.get("IsTruncated"):
                return
            request |= {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}

    def _check_conditional_writes(self) -> None:
        key = f"tmp/{uuid.uuid4().hex}"
        try:
            first, second = self.put_if_absent(key, b"1"), self.put_if_absent(key, b"2")
            swapped = self.compare_and_swap(key, b"3", "0" * 32)
        finally:
            self.remove(key)
        if (first, second, swapped) != (True, False, False):
            raise StoreUrlError(
                f"cannot keep artifacts at {self.url}: its server ignores If-None-Match or If-Match, so two writers "
                "could overwrite each other; use a server with conditional writes (AWS, Ceph 18, MinIO, R2)"
            )

    def _put(self, key: str, data: bytes, **condition: str) -> bool:
        try:
            self._call("put_object", Bucket=self._bucket, Key=self._key(key), Body=data, **condition)
        except OSError as error:
            # A swap against a key that is gone is refused as well.
            if _code(error) in _REJECTED or ("IfMatch" in condition and isinstance(error, FileNotFoundError)):
                return False
            raise
        return True

    def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        return cast("dict[str, Any]", self._fs.call_s3(method, **arguments))

    def _key(self, key: str) -> str:
        return f"{self._root}/{key}" if self._root else key

    def _path(self, key: str) -> str:
        return f"{self._bucket}/{self._key(key)}"

    def _relative(self, key: str) -> str:
        return key[len(self._root) + 1 :] if self._root else key


def _token(answer: dict[str, Any]) -> str:
    """The ETag without its quotes, the form that every server takes in If-Match."""
    return str(answer["ETag"]).strip('"')


def _code(error: OSError) -> str:
    response: dict[str, Any] = getattr(error.__cause__, "response", None) or {}
    with contextlib.suppress(KeyError):
        return str(response["Error"]["Code"])
    return ""
