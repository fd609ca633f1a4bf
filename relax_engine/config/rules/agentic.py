"""Rules about agents."""

from __future__ import annotations

from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig

_OTHERS = ("custom_generate_function_path", "rollout_function_path", "load_debug_rollout_data")


@rule
def agents_have_a_command(config: RunConfig, report: Reporter) -> Findings:
    """Agents are programs, and nothing else makes the samples."""
    agentic = config.agentic
    if not agentic.use_agentic_rollout:
        if agentic.agent_command is not None:
            yield report.warning("agent_command use_agentic_rollout", "no agent runs", "add --use-agentic-rollout")
        if agentic.agentic_custom_advantage_path is not None:
            yield report.error(
                "agentic_custom_advantage_path use_agentic_rollout",
                "credit is for the contexts of agents' sessions",
                "add --use-agentic-rollout, or use --custom-advantage-function-path",
            )
        return
    if agentic.agent_command is None:
        yield report.error(
            "use_agentic_rollout agent_command", "there is no program to run", "--agent-command 'python my_agent.py'"
        )
    if given := [name for name in _OTHERS if getattr(config.flat, name) is not None]:
        yield report.error(
            " ".join(["use_agentic_rollout", *given]), "each of these makes the samples by itself", "keep one of them"
        )
    for item in agentic.agent_env:
        if not item.partition("=")[0].isidentifier() or "=" not in item:
            yield report.error("agent_env", f"{item!r} is not KEY=VALUE", "--agent-env KEY=VALUE OTHER=VALUE")


@rule
def agents_see_messages(config: RunConfig, report: Reporter) -> Findings:
    """Requests of agents are messages, which only a chat template can put into tokens."""
    if config.agentic.use_agentic_rollout and not config.data.apply_chat_template:
        yield report.warning(
            "use_agentic_rollout apply_chat_template",
            "agents send messages, so the chat template is applied whatever this flag says",
            "add --apply-chat-template",
        )


@rule
def agents_begin_again(config: RunConfig, report: Reporter) -> Findings:
    """An agent that was cut off is started anew."""
    if config.agentic.use_agentic_rollout and config.rollout.partial_rollout:
        yield report.note(
            "use_agentic_rollout partial_rollout",
            "sessions that are cut off begin again; new weights do not cut them off, and their answers go on with them",
        )


@rule
def prelaunched_agents_wait(config: RunConfig, report: Reporter) -> Findings:
    """Agents are started early where rollouts take turns with training."""
    agentic = config.agentic
    if agentic.agentic_prelaunch and not (agentic.use_agentic_rollout and config.mode == "colocate"):
        yield report.note(
            "agentic_prelaunch use_agentic_rollout",
            "without effect: it is for agents in colocate mode; elsewhere agents of later rollouts run anyway",
        )
