"""Starting SGLang's server as a process of its own, from the environment that it has to itself.

What lives here: its command line and its environment variables. What does not: process, log and deadline
(`process.py`), ending all of its processes (`supervise.py`), and the platform that lets it run on a CPU (`sglang_cpu`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import SecretStr

import relax_engine
from relax_engine.backends.engines import supervise
from relax_engine.backends.engines.process import EngineProcess, command_arguments, spawn
from relax_engine.backends.engines.types import EngineLaunchError

logger = logging.getLogger(__name__)

_HEADROOM = 8
"""Tokens. SGLang admits prompts of up to its context length less six, and ends a response two tokens before it."""
_DRAIN_S = 8.0
"""For its last answers when it is told to end; less than `EngineProcess.close` waits."""
_ASK_S = 60.0
_ASK = """
import importlib.metadata as metadata, json
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
print(json.dumps([version(name) for name in ("sglang", "relax-sglang-cpu", "torch")]))
"""
_ON_CPU: dict[str, Any] = {
    "device": "cpu",
    "attention-backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_cuda_graph": True,
    "disable_overlap_schedule": True,
    "dtype": "float32",
    "mem_fraction_static": 0.2,
    "max_total_tokens": 65536,
}
_CPU_VARIABLES = {
    "SGLANG_PLATFORM": "relax_cpu",
    "SGLANG_CPU_OMP_THREADS_BIND": "0",
    "OMP_NUM_THREADS": "1",
    # Steps allocate the same large tensors again and again: keep their pages instead of returning them to the system.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
}
_VARIABLES = {
    # The interpreter is one of another environment.
    "PYTHONPATH": "",
    # `/health` is asked while a server is paused, when it cannot generate. `/health_generate` still does.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
    # For the headroom; requests are bounded by whoever sends them.
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
}


@dataclass(frozen=True, slots=True)
class SGLangEnvironment:
    """Where SGLang is installed: versions, and whether the platform for CPUs is."""

    python: str
    sglang: str
    torch: str
    on_cpu: bool


def default_python() -> str:
    """The interpreter of `.venv-sglang` in the checkout."""
    return str(Path(relax_engine.__file__).parents[1] / ".venv-sglang/bin/python")


def find_sglang(python: str) -> SGLangEnvironment:
    """What is installed for the interpreter `python`.

    Raises:
        EngineLaunchError: it is not there, or has no SGLang; says how to install it.
    """
    remedy = (
        "SGLang has an environment of its own: make sglang-cpu builds one for CPUs in .venv-sglang, and on a machine "
        "with GPUs make sglang-gpu does; --sglang-python names the interpreter of another one"
    )
    try:
        answer = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=_ASK_S, check=True).stdout
    except FileNotFoundError:
        raise EngineLaunchError(f"there is no interpreter {python} to start SGLang with. {remedy}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineLaunchError(f"{python} cannot be run to start SGLang: {error}. {remedy}") from error
    sglang, plugin, torch = json.loads(answer)
    if sglang is None:
        raise EngineLaunchError(f"{python} has no SGLang. {remedy}")
    return SGLangEnvironment(python, sglang, torch, on_cpu=plugin is not None)


def launch_sglang(
    model_path: str | os.PathLike[str],
    *,
    python: str | None = None,
    host: str = "127.0.0.1",
    max_running_requests: int | None = None,
    context_length: int | None = None,
    random_seed: int = 0,
    weight_version: str = "0",
    gives_memory_back: bool = False,
    timeout_s: float = 600.0,
    api_key: SecretStr | None = None,
    extra_args: Mapping[str, Any] | None = None,
    scratch: Path | None = None,
) -> EngineProcess:
    """Start `python -m sglang.launch_server` and wait until it answers `/health`.

    Args:
        model_path: Hugging Face model directory.
        python: Interpreter of the environment that has SGLang, by default that of `.venv-sglang` in the checkout.
        host: Address to listen on, and the one in the URL.
        max_running_requests: Most requests decoded together; None for the server's default, as below.
        context_length: Most tokens of prompt and response.
        random_seed: The server's seed.
        weight_version: Version of the weights loaded at start.
        gives_memory_back: It will be asked to, between rollouts; on a GPU it must know that from the start.
        timeout_s: Deadline for the first healthy answer, in seconds.
        api_key: Bearer token that requests need; it travels in a file that other users cannot read.
        extra_args: Further server arguments by name, as for `command_arguments`; they win over those from here.
        scratch: Directory that is removed with the server.

    Raises:
        EngineLaunchError: there is no SGLang, or the server ended or did not answer in time; with the end of its log.
    """
    found = find_sglang(python or default_python())
    with socket.create_server((host, 0)) as free:
        port = free.getsockname()[1]
    saves_memory = gives_memory_back and not found.on_cpu
    given = dict(extra_args or {})
    key = given.pop("api_key", None) or (None if api_key is None else api_key.get_secret_value())
    options: dict[str, Any] = {
        "model_path": os.fspath(model_path),
        "host": host,
        "port": port,
        "max_running_requests": max_running_requests,
        "context_length": None if context_length is None else context_length + _HEADROOM,
        "random_seed": random_seed,
        "weight_version": weight_version,
        "enable_metrics": True,
        # Where no new weights come afterwards, those before are used on.
        "enable_memory_saver": saves_memory,
        "enable_weights_cpu_backup": saves_memory,
        "skip_server_warmup": True,
        "log_level_http": "warning",
        **(_ON_CPU if found.on_cpu else {}),
        **given,
    }
    variables = _VARIABLES | (_CPU_VARIABLES if found.on_cpu else {})
    if Path(model_path).is_dir():
        variables |= {"HF_HUB_OFFLINE": "1"}
    with _key_file(key) as key_arguments:
        command = [found.python, "-m", "sglang.launch_server", *key_arguments, *command_arguments(options)]
        engine = spawn(
            # Without the folder of the script in its path, where modules have names of the standard library.
            [sys.executable, "-P", supervise.__file__, str(os.getpid()), str(_DRAIN_S), *command],
            f"http://{host}:{port}",
            env=variables,
            scratch=scratch,
            secret=key,
        ).wait_healthy(timeout_s)
    logger.info(
        "SGLang %s (torch %s) serves %s at %s (pid %d)", found.sglang, found.torch, model_path, engine.url, engine.pid
    )
    return engine


@contextlib.contextmanager
def _key_file(key: str | None) -> Iterator[list[str]]:
    """Arguments that hand the server its key: a file that only this user can read, there while the server starts."""
    if key is None:
        yield []
        return
    handle, path = tempfile.mkstemp(prefix="relax-engine-", suffix=".yaml")
    try:
        with os.fdopen(handle, "w") as file:
            yaml.safe_dump({"api-key": key}, file)
        yield ["--config", path]
    finally:
        os.unlink(path)
