"""An agent that asks twice, and with CONTEXTS=2 once more in a context of its own."""

import json
import os
import urllib.request
from pathlib import Path

given = json.loads(Path(os.environ["RELAX_INPUT_JSON"]).read_text())


def ask(messages: list) -> list:
    """The messages, and the policy's answer."""
    request = urllib.request.Request(
        os.environ["RELAX_BASE_URL"] + "/chat/completions",
        json.dumps({"messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["RELAX_SESSION_ID"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        content = json.load(answer)["choices"][0]["message"]["content"]
    return [*messages, {"role": "assistant", "content": content}]


history = ask([*ask(given["messages"]), {"role": "user", "content": "and then?"}])
reward = float(len(history[-1]["content"]) % 5)
rows = [{"reward": reward}]
if os.environ["CONTEXTS"] == "2":
    other = ask([{"role": "user", "content": "check"}])
    rows = [{"name": name, "messages": m, "reward": reward} for name, m in (("main", history), ("check", other))]
Path(os.environ["RELAX_OUTPUT_JSON"]).write_text("\n".join(map(json.dumps, rows)))
