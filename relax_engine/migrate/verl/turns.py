"""Settings of verl about turns with tools.

What lives here: the settings. What does not: the tools, which are rewritten (`relax_engine.migrate.code.environment`).
"""

from __future__ import annotations

from relax_engine.migrate.draft import Draft, read_value
from relax_engine.migrate.verl.settings import Settings
from relax_engine.migrate.verl.tables import ROLLOUT
from relax_engine.migrate.verl.values import number

GENERATE = "relax_engine.rollout.multi_turn.generate"
MOST_TURNS = 16
"""Turns where the source has no bound but the length of the response."""

_TURNS = ROLLOUT + "multi_turn."
_SAME = ("max_parallel_calls", "max_tool_response_length", "tool_response_truncate_side")
_FORMATS = (None, "hermes")


def turns(settings: Settings, draft: Draft) -> None:
    """Turns, their number, and the file of tools."""
    enabled, tools = settings.take(_TURNS + "enable"), settings.take(_TURNS + "tool_config_path")
    tools = None if tools is not None and read_value(tools) is None else tools
    if (enabled is not None and read_value(enabled) is not True) or (enabled is None and tools is None):
        for key, value in ((_TURNS + "enable", enabled), (_TURNS + "tool_config_path", tools)):
            if value is not None:
                draft.skip(key, value, "responses have one turn")
        for key in settings.matching(_TURNS + "*"):
            draft.skip(key, settings.take(key) or "", "responses have one turn")
        return
    if enabled is not None:
        draft.settle(_TURNS + "enable", enabled, {"custom_generate_function_path": GENERATE})
    draft.values["custom_generate_function_path"] = GENERATE
    if tools is not None:
        settings.tools = tools
        draft.settle(_TURNS + "tool_config_path", tools, {}, "rewritten as env_*.py with build_env")
    interaction = settings.take(_TURNS + "interaction_config_path")
    if interaction is not None and read_value(interaction) is not None:
        reason = "an interaction answers the model's turns: write it as a BaseInteractionEnv, with build_env"
        draft.needs(_TURNS + "interaction_config_path", interaction, reason)
    _bounds(settings, draft)
    written = settings.take(_TURNS + "format")
    if written is not None and read_value(written) in _FORMATS:
        draft.skip(_TURNS + "format", written, "calls stand between <tool_call> and </tool_call>")
    elif written is not None:
        draft.needs(_TURNS + "format", written, "calls of another form: parse them in step of the environment")
    for key in settings.matching(_TURNS + "*"):
        draft.skip(key, settings.take(key) or "", "tokens are kept as they were sampled, never made from text again")


def _bounds(settings: Settings, draft: Draft) -> None:
    own, users = settings.take(_TURNS + "max_assistant_turns"), settings.take(_TURNS + "max_user_turns")
    if own is not None and number(own):
        draft.custom["max_turns"] = number(own)
        draft.settle(_TURNS + "max_assistant_turns", own, {}, "args.max_turns, under `custom` in the YAML file")
        if users is not None:
            draft.skip(_TURNS + "max_user_turns", users, "turns alternate: follows max_assistant_turns")
    elif users is not None and number(users):
        draft.custom["max_turns"] = (number(users) or 0) + 1
        draft.settle(_TURNS + "max_user_turns", users, {}, "args.max_turns is one more, under `custom`")
    else:
        draft.custom["max_turns"] = MOST_TURNS
        reason = f"args.max_turns is {MOST_TURNS}: turns need a bound"
        draft.default(_TURNS + "max_assistant_turns", own or "null", {}, reason)
    for name in _SAME:
        value = settings.take(_TURNS + name)
        if value is not None:
            draft.custom[name] = read_value(value)
            draft.settle(_TURNS + name, value, {}, f"args.{name}, under `custom` in the YAML file")
