"""Stores of both kinds: a directory, and a prefix of a bucket on an S3 server that runs beside the tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["directory", "s3"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a test keeps its artifacts; processes it starts reach the same place through the environment."""
    if request.param == "directory":
        return str(tmp_path / "store")
    return f"s3://{request.getfixturevalue('s3_bucket')}/team/store"
