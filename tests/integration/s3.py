"""An S3 server beside the tests, for whoever asks for a bucket."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

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


@pytest.fixture
def s3_bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a new bucket; this process and those it starts reach its server through the environment."""
    import s3fs

    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": s3_endpoint}.items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{os.getpid()}-{time.monotonic_ns()}"
    s3fs.S3FileSystem(skip_instance_cache=True).call_s3("create_bucket", Bucket=bucket)
    return bucket
