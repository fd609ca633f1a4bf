"""The process behind an isolated environment: one environment at a time, made and called as its pool asks.

Run as `python -m relax_engine.rollout.environment_worker`, it reads pickled requests from its standard input and writes
pickled answers to what was its standard output; what environments print goes to standard error. It ends with its input.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import sys
from typing import Any, BinaryIO

from relax_engine.rollout.environment import BaseInteractionEnv, load_build_env


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    environment: BaseInteractionEnv | None = None
    with asyncio.Runner() as runner:
        while (request := _read(sys.stdin.buffer)) is not None:
            name, arguments = request
            try:
                if name == "build":
                    path, sample, args = arguments
                    environment = load_build_env(path)(sample=sample, args=args)
                    answer: tuple[bool, Any] = (True, None)
                else:
                    answer = (True, runner.run(_call(environment, name, arguments)))
                packed = pickle.dumps(answer)
            except Exception as error:  # noqa: BLE001 - user code; its error goes to the caller
                packed = pickle.dumps((False, f"{type(error).__name__}: {error}"))
            answers.write(len(packed).to_bytes(8, "little") + packed)
            answers.flush()


async def _call(environment: BaseInteractionEnv | None, name: str, arguments: tuple[Any, ...]) -> Any:
    result = getattr(environment, name)(*arguments)
    return await result if inspect.isawaitable(result) else result


def _read(stream: BinaryIO) -> Any:
    """The next request; None at the end of the input."""
    head = stream.read(8)
    return pickle.loads(stream.read(int.from_bytes(head, "little"))) if len(head) == 8 else None


if __name__ == "__main__":
    main()
