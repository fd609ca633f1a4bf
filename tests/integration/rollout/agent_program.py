"""An agent of a test: what it does is said by the metadata of its sample, or drawn from its sample's number."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

given = json.loads(Path(os.environ["RELAX_INPUT_JSON"]).read_text())
behaviour = given["metadata"].get("behaviour", "talk")


def ask(messages: list[dict[str, str]]) -> str:
    request = urllib.request.Request(
        os.environ["RELAX_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["RELAX_SESSION_ID"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def talk(messages: list[dict[str, str]], turns: int = 2) -> list[dict[str, str]]:
    for turn in range(turns):
        messages = [*messages, {"role": "assistant", "content": ask(messages)}]
        if turn + 1 < turns:
            messages.append({"role": "user", "content": f"turn {turn}"})
    return messages


messages = given["messages"]
if behaviour == "fail":
    talk(messages, 1)
    sys.exit("it went wrong")
if behaviour == "fail once":
    flag = given["metadata"]["flag"] + str(given["metadata"]["index"])
    if not os.path.exists(flag):
        Path(flag).touch()
        sys.exit("at first")
if behaviour == "hang":
    # With a child in a process group of its own, which holds on too.
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
if behaviour == "killed":
    talk(messages, 1)
    os.kill(os.getpid(), signal.SIGKILL)
if behaviour == "silent":
    sys.exit(0)
history = talk(messages)
output = None
if behaviour == "reward":
    output = {"reward": 0.25, "metadata": {"steps": 2}}
if behaviour in ("branches", "exports"):
    other = talk([*messages, {"role": "user", "content": "another way"}], 1)
    if behaviour == "exports":
        output = [
            {"name": "main", "messages": history, "metadata": {"kind": 1}, "reward": 1.0},
            {"name": "helper", "messages": other, "metadata": {"kind": 2}, "reward": 1.0},
        ]
if output is not None:
    rows = output if isinstance(output, list) else [output]
    Path(os.environ["RELAX_OUTPUT_JSON"]).write_text("\n".join(map(json.dumps, rows)))
