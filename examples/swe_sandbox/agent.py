"""The agent: shows the model a file and a request, makes its edit in a directory, runs the tests, and asks once more.

    python -S -m examples.swe_sandbox.agent      # started by the run, once for each sample

What lives here: the program. What does not: answering it (`--use-agentic-rollout`), and files and tests (`workspace`).
It imports nothing but the standard library and the sandbox, so it starts in 0.1 s.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from examples.swe_sandbox.workspace import Workspace

TRIES = 2


def main() -> None:
    """One session: reward 1 if the tests pass at the first try, 1/2 at the second, else 0."""
    given = json.loads(Path(os.environ["RELAX_INPUT_JSON"]).read_text())
    messages, metadata = given["messages"], given["metadata"]
    workspace = Workspace(Path(os.environ["RELAX_SESSION_IO_DIR"]) / "work", metadata["source"])
    reward, tries = 0.0, 0
    for tries in range(1, TRIES + 1):
        answer = ask(messages)
        failure = workspace.attempt(answer, metadata["tests"])
        if failure is None:
            reward = 1.0 / tries
            break
        messages = [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": failure}]
    output = {"reward": reward, "metadata": {"tries": tries}}
    Path(os.environ["RELAX_OUTPUT_JSON"]).write_text(json.dumps(output))


def ask(messages: Sequence[dict[str, str]]) -> str:
    """The policy's answer."""
    request = urllib.request.Request(
        f"{os.environ['RELAX_BASE_URL']}/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Authorization": f"Bearer {os.environ['RELAX_SESSION_ID']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


if __name__ == "__main__":
    main()
