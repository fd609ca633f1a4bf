"""Stores of both kinds: a directory, and a prefix of a bucket on an S3 server that runs beside the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs

from relax_engine.utils.network import free_port

START_DEADLINE_S = 60.0
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "testtest",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a moto server, a process of its own."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = tmp_path_factory.mktemp("s3") / "server.log"
    with log.open("w") as output:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            try:
                urllib.request.urlopen(f"{url}/moto-api/", timeout=1).close()
                break
            except OSError:
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < deadline, f"{url} does not answer: {log.read_text()}"
                time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture(params=["directory", "s3"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a test keeps its artifacts; processes it starts reach the same place through the environment."""
    if request.param == "directory":
        return str(tmp_path / "store")
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": request.getfixturevalue("s3_endpoint")}.items():
        monkeypatch.setenv(name, value)
    bucket = f"artifacts-{os.getpid()}-{time.monotonic_ns()}"
    s3fs.S3FileSystem(skip_instance_cache=True).call_s3("create_bucket", Bucket=bucket)
    return f"s3://{bucket}/team/store"
