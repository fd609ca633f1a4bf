"""An environment of the package `verifiers` as an agent, in one line:

    --agent-command '.venv-verifiers/bin/python -m relax_engine.rollout.agents.verifiers_session TASKSET'

What lives here: the agent's program. It imports nothing of the engine, so the interpreter may be one that has
`verifiers` alone. `--prompts FILE` writes the prompt rows of the tasks, and ends. What does not: answering it
(`gateway`).

Each row's metadata `task` is the position of its task; the session's reward is that of the episode.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Run one session, or write the prompts."""
    parser = argparse.ArgumentParser(prog="verifiers_session", description="A verifiers environment as an agent.")
    parser.add_argument("taskset", help="id of a taskset that is installed")
    parser.add_argument("--env", default="", help="id of an environment to pair it with (default: the taskset's own)")
    parser.add_argument("--config", type=json.loads, default={}, help="further fields of the taskset, as JSON")
    parser.add_argument("--harness", default="null", help="id of the harness that talks to the model (default: null)")
    parser.add_argument("--prompts", type=Path, help="write the rows of --prompt-data to this JSON Lines file, and end")
    parser.add_argument("--limit", type=int, help="with --prompts: only so many tasks")
    options = parser.parse_args(argv)
    # The package starts harnesses with `uv`, which it installs itself where PATH has none.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    env = _environment(options)
    if options.prompts is not None:
        tasks = env.taskset if options.limit is None else env.taskset.take(options.limit)
        options.prompts.write_text("".join(json.dumps(_row(task)) + "\n" for task in tasks))
        return 0
    given = json.loads(Path(os.environ["RELAX_INPUT_JSON"]).read_text())
    (task,) = env.taskset.skip(int(given["metadata"]["task"])).take(1)
    output = asyncio.run(_episode(env, task))
    Path(os.environ["RELAX_OUTPUT_JSON"]).write_text(json.dumps(output))
    return 0


def _environment(options: argparse.Namespace) -> Any:
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    seat = {"harness": {"id": options.harness}, "runtime": {"type": "subprocess"}}
    fields = {"id": options.env, "taskset": {**options.config, "id": options.taskset}, "agent": seat}
    return load_environment(resolve_env_config(fields))


def _row(task: Any) -> dict[str, Any]:
    """A prompt as the model will see it; the harness decides what is sent."""
    data = task.data.model_dump(mode="json")
    prompt, system = data["prompt"] or "", data["system_prompt"]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    messages = [{"role": "system", "content": system}, *messages] if system else messages
    return {"prompt": messages, "label": "", "metadata": {"task": data["idx"]}}


async def _episode(env: Any, task: Any) -> dict[str, Any]:
    """Reward and metrics of one episode.

    Raises:
        RuntimeError: the episode failed, or has more than one agent.
    """
    import verifiers.v1 as vf

    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    async with env.serving():
        episode = await env.run_episode(task, vf.ModelContext(model="policy", client=client))
    if not episode.ok:
        causes = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        raise RuntimeError(f"the episode failed: {'; '.join(f'{each.type}: {each.message}' for each in causes)}")
    if len(episode.traces) != 1:
        raise RuntimeError(f"the episode has {len(episode.traces)} agents; sessions here have one")
    (trace,) = episode.traces
    metrics = {name: value for name, value in trace.metrics.items() if value is not None}
    return {"reward": trace.reward, "metadata": metrics}


if __name__ == "__main__":
    sys.exit(main())
