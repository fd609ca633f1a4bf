"""An engine as a process of its own: its arguments, its log, its first answer, its end.

What does not live here: which program it is (`launch.py` for the embedded engine, `sglang_launch.py` for
SGLang's server).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from relax_engine.backends.engines.types import EngineLaunchError

_POLL_S = 0.05
_LOG_TAIL_BYTES = 4000
_TERMINATE_S = 10.0


class EngineProcess:
    """A running engine; ends with `close`, with the `with` block, or with the process that started it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        url: str,
        log_path: Path,
        *,
        scratch: Path | None = None,
        secret: str | None = None,
    ) -> None:
        """A process that was started; `scratch` is a directory that goes with it, `secret` what no log may show."""
        self.process, self.url, self.log_path, self.scratch, self._secret = process, url, log_path, scratch, secret

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self.process.pid

    def log_tail(self) -> str:
        """The end of the engine's log."""
        data = self.log_path.read_bytes() if self.log_path.is_file() else b""
        text = data[-_LOG_TAIL_BYTES:].decode(errors="replace")
        return text.replace(self._secret, "***") if self._secret else text

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

    def wait_healthy(self, timeout_s: float) -> Self:
        """Return when it answers `/health`; it is closed when it does not within `timeout_s` seconds.

        Raises:
            EngineLaunchError: it ended or did not answer in time; the message carries the end of its log.
        """
        try:
            self._wait_healthy(timeout_s)
        except BaseException:
            self.close()
            raise
        return self

    def _wait_healthy(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            status = self.process.poll()
            if status is not None:
                raise EngineLaunchError(f"the engine ended with status {status} during start:\n{self.log_tail()}")
            left = deadline - time.monotonic()
            if left <= 0:
                raise EngineLaunchError(
                    f"the engine at {self.url} was not healthy in {timeout_s:g} s:\n{self.log_tail()}"
                )
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=min(left, 2.0)):
                    return
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                time.sleep(_POLL_S)

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
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def spawn(
    command: Sequence[str],
    url: str,
    *,
    env: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    scratch: Path | None = None,
    secret: str | None = None,
) -> EngineProcess:
    """Run `command`, its output in a log of its own.

    Args:
        command: Program and arguments.
        url: Where the engine is going to answer.
        env: Environment variables added to this process's.
        pass_fds: File descriptors that it inherits.
        scratch: Directory that is removed with the engine.
        secret: Taken out of what is shown of the log.
    """
    handle, log_name = tempfile.mkstemp(prefix="relax-engine-", suffix=".log")
    with os.fdopen(handle, "wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            pass_fds=pass_fds,
        )
    return EngineProcess(process, url, Path(log_name), scratch=scratch, secret=secret)


def command_arguments(options: Mapping[str, Any]) -> list[str]:
    """A command line from arguments by name.

    Underscores become dashes, True is a bare flag, None and False are left out, a list is several values and a
    mapping is JSON.
    """
    arguments = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        arguments.append(f"--{name.replace('_', '-')}")
        if isinstance(value, list | tuple):
            arguments += map(str, value)
        elif isinstance(value, Mapping):
            arguments.append(json.dumps(value))
        elif value is not True:
            arguments.append(str(value))
    return arguments
