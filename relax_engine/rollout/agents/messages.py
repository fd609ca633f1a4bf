"""Requests and answers of agents in one form, whichever protocol brought them.

What lives here: the form, and when two messages are the same. What does not: protocols (`chat`, `responses`,
`anthropic`), and what the model wrote before it was an answer (`parsing`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relax_engine.errors import RelaxError
from relax_engine.types import Message

_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)
ROLES = ("system", "user", "assistant", "tool")


class RequestError(RelaxError):
    """An agent asked for something that cannot be answered; `status` and `code` are what its client is told."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One request for an answer.

    `messages` are in OpenAI's chat form with text contents; arguments of tool calls are dictionaries, as chat templates
    want them. `tools` are in OpenAI's chat form too. Temperature and its like are the policy's, and not here.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    template_options: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    model: str = "policy"
    stream: bool = False
    log_probs: bool = False

    def context_key(self) -> str:
        """What must be the same for one request to go on where another ended: tools and template options."""
        return json.dumps([list(self.tools), dict(self.template_options)], sort_keys=True)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool; `arguments` is JSON text, as the model wrote it where it is an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model answered. `finish` is `stop`, `length` or `tool_calls`."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    log_probs: tuple[tuple[str, float], ...] = ()
    """Text and natural log-prob of each token, where asked for."""

    def message(self) -> Message:
        """As a message of the history that the agent sends with its next request."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": read_arguments(call.arguments)},
                }
                for call in self.tool_calls
            ]
        return message


def message_key(message: Message) -> str:
    """Equal for messages that are the same: outer white space of texts, and the thoughts of answers, do not count.

    Clients drop thoughts or send them as text, strip texts, and write the same arguments in other ways.
    """
    content = str(message.get("content") or "")
    if message["role"] == "assistant":
        content = _THOUGHTS.sub("", content)
    calls = [
        [call.get("id"), call["function"]["name"], call["function"].get("arguments")]
        for call in message.get("tool_calls") or []
    ]
    parts = [message["role"], content.strip(), calls, message.get("tool_call_id")]
    return json.dumps(parts, sort_keys=True)


def history_keys(messages: Sequence[Message]) -> tuple[str, ...]:
    """The key of each message."""
    return tuple(map(message_key, messages))


def read_arguments(text: Any) -> Any:
    """Arguments of a tool call as a dictionary where they are a JSON object, else as they are."""
    if not isinstance(text, str):
        return text
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def check_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages, if the chat contract holds.

    Raises:
        RequestError: none, an unknown role, or a message that says nothing.
    """
    if not messages:
        raise RequestError("messages is empty; send the whole history with every request")
    for number, message in enumerate(messages):
        role = message.get("role")
        if role not in ROLES:
            raise RequestError(f"messages[{number}]: role {role!r} is none of {', '.join(ROLES)}")
        if role in ("system", "user") and not str(message.get("content") or "").strip():
            raise RequestError(f"messages[{number}]: a {role} message must not be empty")
    return tuple(messages)


def text_of(content: Any, where: str, kinds: Sequence[str] = ("text",)) -> str:
    """The text of a content that is text, or a list of text parts.

    Raises:
        RequestError: it holds something else, such as an image.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RequestError(f"{where}: content is {type(content).__name__}, not text or a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in kinds:
            raise RequestError(f"{where}: a part of type {kind!r}; this policy reads text alone")
        texts.append(str(part.get("text") or part.get("refusal") or ""))
    return "\n".join(texts)
