"""Starting an embedded engine as a process of its own."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from relax_engine.access.policy import ENGINE_KEY_VARIABLE
from relax_engine.backends.engines.process import EngineProcess, command_arguments, spawn

logger = logging.getLogger(__name__)

__all__ = ["EngineProcess", "launch_engine"]


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
        extra_args: Further server arguments by name, as for `command_arguments`.
        env: Environment variables added to this process's.

    Raises:
        EngineLaunchError: it ended or did not answer in time; the message carries the end of its log.
    """
    # The socket is bound here and inherited, so no other process can take the port in between.
    with socket.create_server((host, port or 0), backlog=512) as listener:
        # Its connections inherit this. The server cannot tell that the socket it is given is TCP, and would have the
        # end of each answer wait for the acknowledgement of its beginning.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        options: dict[str, Any] = {
            "model_path": os.fspath(model_path),
            "fd": listener.fileno(),
            "max_running_requests": max_running_requests,
            "max_total_tokens": max_total_tokens,
            "context_length": context_length,
            "dtype": dtype,
            "device": device,
            "threads": threads,
            "random_seed": random_seed,
            "weight_version": weight_version,
            "weight_store": weight_store,
            "parent_pid": os.getpid(),
            **(extra_args or {}),
        }
        engine = spawn(
            [sys.executable, "-m", "relax_engine.backends.engines.local", *command_arguments(options)],
            f"http://{host}:{listener.getsockname()[1]}",
            env={"OMP_NUM_THREADS": str(threads), **_key_variable(api_key), **(env or {})},
            pass_fds=[listener.fileno()],
        )
    engine.wait_healthy(timeout_s)
    logger.info("engine of %s answers at %s (pid %d)", model_path, engine.url, engine.pid)
    return engine


def _key_variable(api_key: SecretStr | None) -> dict[str, str]:
    return {} if api_key is None else {ENGINE_KEY_VARIABLE: api_key.get_secret_value()}
