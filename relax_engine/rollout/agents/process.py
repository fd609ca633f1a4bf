"""Agents as processes: started in a group of their own, watched, and ended with everything they started.

What lives here: processes and their files. What does not: how often a failed agent is started again (`rollout`), and
what its output means (`output`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from relax_engine.rollout.agents import reaper

logger = logging.getLogger(__name__)

SESSION_VARIABLE = "RELAX_SESSION_ID"
_TERMINATE_S = 2.0
_KILL_S = 10.0
_STARTING_S = 0.1
_WATCH_S = 0.1
_POLL_S = 0.02
_LOG_TAIL_BYTES = 2000


class Reaper:
    """The watcher over all agents of this process; see `reaper`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", reaper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def tell(self, sign: str, group: int) -> None:
        """`+` for a group that started, `-` for one that ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{sign}{group}\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End it, and with it every group it still knows."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(10.0)


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """How agents are started: a shell-like command line, a working directory, and variables."""

    command: str
    cwd: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def arguments(self) -> Sequence[str]:
        """The command as a list; `python` alone is the interpreter of this run."""
        words = shlex.split(self.command)
        return [sys.executable, *words[1:]] if words[:1] == ["python"] else words


class AgentProcess:
    """One running agent.

    Its directory holds `input.json`, `output.json` (which it may write) and `log.txt` (what it prints).
    """

    def __init__(self, process: subprocess.Popen[bytes], directory: Path, session: str, watcher: Reaper) -> None:
        self.process, self.directory, self.session, self._watcher = process, directory, session, watcher
        self._watcher.tell("+", process.pid)

    async def wait(self) -> int:
        """Return its exit status when it has ended; negative for a signal."""
        while (status := self.process.poll()) is None:
            await asyncio.sleep(_WATCH_S)
        return status

    def output(self) -> str:
        """What it wrote to `RELAX_OUTPUT_JSON`; empty if nothing."""
        path = self.directory / "output.json"
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def log_tail(self) -> str:
        """The end of what it printed."""
        path = self.directory / "log.txt"
        return path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace") if path.is_file() else ""

    async def end(self) -> None:
        """End it and all that it started, and remove its directory: SIGTERM, and SIGKILL after two seconds.

        What left its process group is found by the session's variable in its environment. Idempotent.
        """
        group, by_itself = self.process.pid, self.process.poll() is not None
        self._signal(group, signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + _TERMINATE_S
        while (self.process.poll() is None or _alive(group)) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_POLL_S)
        self._signal(group, signal.SIGKILL)
        await asyncio.to_thread(self.process.wait, _KILL_S)
        await asyncio.to_thread(end_strays, {self.session})
        if not by_itself:
            # A process that was being started a moment ago had no environment to be known by.
            await asyncio.sleep(_STARTING_S)
            await asyncio.to_thread(end_strays, {self.session})
        self._watcher.tell("-", group)
        shutil.rmtree(self.directory, ignore_errors=True)

    @staticmethod
    def _signal(group: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)


def start_agent(
    command: AgentCommand, *, session: str, base_url: str, mode: str, group: int, given: str, watcher: Reaper
) -> AgentProcess:
    """Start an agent for a session.

    Args:
        command: What to run.
        session: Key of the session; the agent's API key.
        base_url: Of the gateway, without `/v1`.
        mode: `train` or `eval`.
        group: Number of the prompt group.
        given: JSON text of what it is to do.
        watcher: Told of the process.

    Raises:
        OSError: the command cannot be started.
    """
    directory = Path(tempfile.mkdtemp(prefix="relax-agent-"))
    (directory / "input.json").write_text(given, encoding="utf-8")
    environment = {
        **os.environ,
        **command.variables,
        "RELAX_INPUT_JSON": str(directory / "input.json"),
        "RELAX_OUTPUT_JSON": str(directory / "output.json"),
        "RELAX_SESSION_IO_DIR": str(directory),
        "RELAX_BASE_URL": f"{base_url}/v1",
        SESSION_VARIABLE: session,
        "RELAX_ROLLOUT_MODE": mode,
        "RELAX_GROUP_ID": str(group),
        "OPENAI_BASE_URL": f"{base_url}/v1",
        "OPENAI_API_KEY": session,
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_API_KEY": session,
    }
    try:
        with (directory / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                command.arguments(),
                cwd=command.cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return AgentProcess(process, directory, session, watcher)


def end_strays(sessions: Collection[str]) -> None:
    """Kill the processes that have one of the sessions in their environment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(SESSION_VARIABLE) in sessions:
                logger.warning("process %d of a session left its group; it is killed", process.pid)
                process.kill()


def _alive(group: int) -> bool:
    """Whether the process group has a member that runs."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
