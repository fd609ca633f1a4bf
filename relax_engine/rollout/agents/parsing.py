"""From what a model wrote to an answer: its thoughts, its calls of tools, and the rest.

What lives here: the spellings that model families use. What does not: how a protocol shows an answer.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from relax_engine.rollout.agents.messages import ToolCall

ToolParser = Callable[[str], tuple[str, list[tuple[str, Any]]]]
"""Text -> (what is left of it, calls as (name, arguments))."""

_HERMES = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_MISTRAL = "[TOOL_CALLS]"


def _hermes(text: str) -> tuple[str, list[tuple[str, Any]]]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them (Hermes, Qwen)."""
    calls = [_call(_json(match)) for match in _HERMES.findall(text)]
    if not calls or None in calls:
        return text, []
    return _HERMES.sub("", text), [call for call in calls if call is not None]


def _llama3(text: str) -> tuple[str, list[tuple[str, Any]]]:
    """The whole answer is `{"name": ..., "parameters": {...}}` (Llama 3.1 and later)."""
    call = _call(_json(text.removeprefix("<|python_tag|>")), "parameters")
    return (text, []) if call is None else ("", [call])


def _mistral(text: str) -> tuple[str, list[tuple[str, Any]]]:
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]` at the end (Mistral)."""
    before, mark, after = text.partition(_MISTRAL)
    items = _json(after) if mark else None
    calls = [_call(item) for item in items] if isinstance(items, list) else []
    if not calls or None in calls:
        return text, []
    return before, [call for call in calls if call is not None]


TOOL_PARSERS: Mapping[str, ToolParser | None] = {
    "hermes": _hermes,
    "qwen": _hermes,
    "qwen25": _hermes,
    "llama3": _llama3,
    "mistral": _mistral,
    "none": None,
}
"""What `--agentic-tool-call-parser` names; `none` leaves calls in the text."""

REASONING_PARSERS = ("none", "think", "qwen3", "deepseek-r1")
"""What `--agentic-reasoning-parser` names; all but `none` read `<think>...</think>`."""


def split_reasoning(text: str, parser: str) -> tuple[str, str]:
    """`(thoughts, rest)`. `<think>` may have been part of the prompt; thoughts without an end are all there is."""
    if parser == "none":
        return "", text
    thoughts, end, rest = text.partition("</think>")
    if end:
        return thoughts.strip().removeprefix("<think>").strip(), rest
    if text.lstrip().startswith("<think>"):
        return text.lstrip().removeprefix("<think>").strip(), ""
    return "", text


def split_calls(text: str, parser: str) -> tuple[str, tuple[ToolCall, ...]]:
    """`(rest, calls)`; a call that is not well-formed leaves the whole text as it is."""
    function = TOOL_PARSERS[parser]
    if function is None:
        return text, ()
    rest, calls = function(text)
    return rest, tuple(
        ToolCall(f"call_{uuid.uuid4().hex[:24]}", name, arguments if isinstance(arguments, str) else _dumped(arguments))
        for name, arguments in calls
    )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _dumped(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _call(item: Any, key: str = "arguments") -> tuple[str, Any] | None:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        return None
    arguments = item.get(key, {})
    return (item["name"], arguments) if isinstance(arguments, dict | str) else None
