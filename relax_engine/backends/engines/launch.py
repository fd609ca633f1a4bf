"""Starting an embedded engine as a process of its own, and ending it."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import SecretStr

from relax_engine.access.policy import ENGINE_KEY_VARIABLE
from relax_engine.backends.engines.types import EngineLaunchError

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_LOG_TAIL_BYTES = 4000
_TERMINATE_S = 10.0


class EngineProcess:
    """A running engine; ends with `close`, with the `with` block, or with the process that started it."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log_path: Path) -> None:
        self.process, self.url, self.log_path = process, url, log_path

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self.process.pid

    def log_tail(self) -> str:
        """The end of the engine's log."""
        data = self.log_path.read_bytes() if self.log_path.is_file() else b""
        return data[-_LOG_TAIL_BYTES:].decode(errors="replace")

    def listens(self) -> bool:
        """Whether it takes connections; one that was told to end does not, and answers those that it has."""
        address = urlsplit(self.url)
        try:
            socket.create_connection((address.hostname or "", address.port or 0), timeout=_POLL_S).close()
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        """End the process and remove its log; killed when it does not end within ten seconds."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_TERMINATE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(_TERMINATE_S)
        self.log_path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def launch_engine(
    model_path: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    max_running_requests: int | None = None,
    max_total_tokens: int | None = None,
    context_length: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    threads: int = 1,
    random_seed: int = 0,
    weight_version: str = "0",
    weight_store: str | None = None,
    timeout_s: float = 120.0,
    api_key: SecretStr | None = None,
    extra_args: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> EngineProcess:
    """Start `python -m relax_engine.backends.engines.local` and wait until it answers `/health`.

    Args:
        model_path: Hugging Face model directory.
        host: Address to listen on, and the one in the URL.
        port: Port to listen on; None takes a free one.
        max_running_requests: Most requests decoded together; None for the server's default, as below.
        max_total_tokens: Tokens in the cache.
        context_length: Most tokens of prompt and response.
        dtype: float32 or bfloat16.
        device: cpu or cuda.
        threads: CPU threads.
        random_seed: Seed of requests that bring none.
        weight_version: Version of the weights loaded at start.
        weight_store: URL of a weight store; its newest version, if it has one, is served instead.
        timeout_s: Deadline for the first healthy answer, in seconds.
        api_key: Bearer token that requests need; it travels in the environment, which other users cannot read.
        extra_args: Further server arguments by name; underscores become dashes, True is a bare flag.
        env: Environment variables added to this process's.

    Raises:
        EngineLaunchError: it ended or did not answer in time; the message carries the end of its log.
    """
    # The socket is bound here and inherited, so no other process can take the port in between.
    listener = socket.create_server((host, port or 0), backlog=512)
    # Its connections inherit this. The server cannot tell that the socket it is given is TCP, and would have the end of
    # each answer wait for the acknowledgement of its beginning.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    url = f"http://{host}:{listener.getsockname()[1]}"
    options: dict[str, Any] = {
        "model-path": os.fspath(model_path),
        "fd": listener.fileno(),
        "max-running-requests": max_running_requests,
        "max-total-tokens": max_total_tokens,
        "context-length": context_length,
        "dtype": dtype,
        "device": device,
        "threads": threads,
        "random-seed": random_seed,
        "weight-version": weight_version,
        "weight-store": weight_store,
        "parent-pid": os.getpid(),
    }
    options.update({name.replace("_", "-"): value for name, value in (extra_args or {}).items()})
    command = [sys.executable, "-m", "relax_engine.backends.engines.local", *_arguments(options)]
    handle, log_name = tempfile.mkstemp(prefix="relax-engine-", suffix=".log")
    with listener, os.fdopen(handle, "wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), **_key_variable(api_key), **(env or {})},
            pass_fds=[listener.fileno()],
        )
    engine = EngineProcess(process, url, Path(log_name))
    try:
        _wait_healthy(engine, timeout_s)
    except BaseException:
        engine.close()
        raise
    logger.info("engine of %s answers at %s (pid %d)", model_path, url, process.pid)
    return engine


def _key_variable(api_key: SecretStr | None) -> dict[str, str]:
    return {} if api_key is None else {ENGINE_KEY_VARIABLE: api_key.get_secret_value()}


def _arguments(options: Mapping[str, Any]) -> list[str]:
    arguments = []
    for name, value in options.items():
        if value is True:
            arguments.append(f"--{name}")
        elif value is not None and value is not False:
            arguments += [f"--{name}", str(value)]
    return arguments


def _wait_healthy(engine: EngineProcess, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        status = engine.process.poll()
        if status is not None:
            raise EngineLaunchError(f"the engine ended with status {status} during start:\n{engine.log_tail()}")
        left = deadline - time.monotonic()
        if left <= 0:
            raise EngineLaunchError(
                f"the engine at {engine.url} was not healthy in {timeout_s:g} s:\n{engine.log_tail()}"
            )
        try:
            with urllib.request.urlopen(f"{engine.url}/health", timeout=min(left, 2.0)):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(_POLL_S)
