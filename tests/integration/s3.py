"""An S3 server beside the tests, for whoever asks for a bucket: moto's, or with `RELAX_S3_SERVER=ceph` a real one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from relax_engine.utils.network import free_port
from tests.integration.ceph import ceph_gateway

START_DEADLINE_S = 60.0
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "testtest",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    # What Flyte writes by itself; the engine asks for this where it matters.
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
    "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
}


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server with processes of its own."""
    root = tmp_path_factory.mktemp("s3")
    if os.environ.get("RELAX_S3_SERVER") == "ceph":
        server = ceph_gateway(root, CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"])
    else:
        server = moto_server(root)
    with server as url:
        yield url


@contextlib.contextmanager
def moto_server(root: Path) -> Iterator[str]:
    """Address of a moto server."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = root / "server.log"
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


@pytest.fixture
def s3_bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a new bucket; this process and those it starts reach its server through the environment."""
    import s3fs

    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": s3_endpoint}.items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{os.getpid()}-{time.monotonic_ns()}"
    s3fs.S3FileSystem(skip_instance_cache=True).call_s3("create_bucket", Bucket=bucket)
    return bucket
