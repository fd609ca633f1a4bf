"""Custom generation: multi-turn environments and agents."""

from __future__ import annotations

from typing import Literal

from relax_engine.config.sections.base import Section, StrList, flag, group


class Agentic(Section):
    """What replaces the single-turn sampling of one response: a hook, or agents that are programs of their own."""

    custom_generate_function_path: str | None = None
    """Your generation, `package.module.function`: `async generate(args, sample, sampling_params) -> Sample`."""

    custom_config_path: str | None = None
    """YAML file of settings for your hooks; its keys become attributes of `args`. A key that is also a flag's
    name sets that flag and wins over the command line."""

    use_agentic_rollout: bool = False
    """Samples are sessions of agents: `--agent-command` runs once for each and talks to the policy over chat
    endpoints, see `docs/agents.md`."""

    agent_command: str | None = None
    """Command line of the agent, words as in a shell. A first word `python` is the interpreter of the run."""

    agent_cwd: str | None = None
    """Working directory of agents. Default: that of the run."""

    agent_env: StrList = group(list)
    """Variables of agents, `KEY=VALUE` each."""

    agent_timeout: float = flag(1800.0, gt=0, unit="seconds")
    """An agent that runs longer is ended, and its session has failed; time before its rollout does not count."""

    agentic_max_attempts: int = flag(3, ge=1)
    """A session that fails this often leaves its group out of training; in an evaluation it scores 0."""

    agentic_concurrency: int | None = flag(None, ge=1, unit="prompts")
    """Prompt groups whose agents run at the same time. Default: `--over-sampling-batch-size`."""

    agentic_eval_concurrency: int | None = flag(None, ge=1, unit="prompts")
    """The same in evaluations. Default: as many samples at a time as in training."""

    agentic_prelaunch: bool = False
    """Start the agents of the next rollout while the present one is trained; their requests wait for it."""

    agentic_tool_call_parser: Literal["hermes", "qwen", "qwen25", "llama3", "mistral", "none"] = "hermes"
    """How the model writes calls of tools; `none` leaves them in the text."""

    agentic_reasoning_parser: Literal["none", "think", "qwen3", "deepseek-r1"] = "none"
    """How the model marks its thoughts; all but `none` read `<think>...</think>`."""

    agentic_custom_advantage_path: str | None = None
    """Function `(metadata_by_slot) -> list of {context name: advantage}, or None` that gives each context of a group
    its credit, see `relax_engine.rollout.agents.credit`."""
