"""File systems by URL, with the settings that every S3 server takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

S3_CONFIG: dict[str, Any] = {
    "connect_timeout": 20,
    "read_timeout": 120,
    "retries": {"max_attempts": 8, "mode": "standard"},
    # Some servers know no trailing checksums; content is checked by SHA-256 on reading.
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
"""Botocore's settings for S3, times in seconds."""


def unreachable() -> tuple[type[Exception], ...]:
    """What reading and writing raise while a server does not answer, or refuses."""
    from botocore.exceptions import BotoCoreError

    return (OSError, BotoCoreError)


def is_url(path: str | None) -> bool:
    """Whether `path` names a place by scheme, `s3://bucket/key`, and not a local file."""
    return path is not None and "://" in path


def open_filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of `url` and the path in it; a plain path is a local one.

    Raises:
        ImportError, ValueError: no such scheme, or its package is missing.
    """
    import fsspec

    if not is_url(url):
        url = f"file://{Path(url).absolute()}"
    options: dict[str, Any] = {"config_kwargs": S3_CONFIG} if url.startswith("s3://") else {}
    if url.startswith("file://"):
        options["auto_mkdir"] = True
    fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
    return fs, path
