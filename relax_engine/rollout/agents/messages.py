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
from relax_engine.multimodal.content import KINDS, Media, digest_of
from relax_engine.types import Message

_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)
Content = str | list[dict[str, Any]]
"""Text, or parts `{"type": "text", "text": ...}`, `{"type": "image", "image": data URI}` and the same of audio."""
ROLES = ("system", "user", "assistant", "tool")


class RequestError(RelaxError):
    """An agent asked for something that cannot be answered; `status` and `code` are what its client is told."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One request for an answer.

    `messages` are in OpenAI's chat form, with contents that are texts, or lists of parts where there are media (see
    `Content`); arguments of tool calls are dictionaries, as chat templates want them. `tools` are in OpenAI's chat form
    too. Temperature and its like are the policy's, and not here.
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
    given = message.get("content") or ""
    content = text_of(given)
    if message["role"] == "assistant":
        content = _THOUGHTS.sub("", content)
    calls = [
        [call.get("id"), call["function"]["name"], call["function"].get("arguments")]
        for call in message.get("tool_calls") or []
    ]
    parts = [message["role"], content.strip(), calls, message.get("tool_call_id")]
    if isinstance(given, list):
        parts += [[part["type"] for part in given], digest_of(media_in([message]))]
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
        content = message.get("content") or ""
        if role in ("system", "user") and isinstance(content, str) and not content.strip():
            raise RequestError(f"messages[{number}]: a {role} message must not be empty")
    return tuple(messages)


def content_of(content: Any, where: str, kinds: Sequence[str] = ("text",)) -> Content:
    """The text of a content that is text or a list of text parts; with media among them, a list of parts.

    `kinds` are the types of text parts. Media are given as data URIs or base64, in the form of any of the protocols.

    Raises:
        RequestError: a part of another type, or media that are not in the request.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RequestError(f"{where}: content is {type(content).__name__}, not text or a list of parts")
    parts = [_part(part, where, kinds) for part in content]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(part: Any, where: str, kinds: Sequence[str]) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in kinds:
        return {"type": "text", "text": str(part.get("text") or part.get("refusal") or "")}
    if kind in ("image_url", "input_image", "image"):
        value = part.get("image_url") if kind != "image" else part.get("source")
        return {"type": "image", "image": _data_uri(value, f"{where}: a part of type {kind!r}", "image/png")}
    if kind == "input_audio":
        return {"type": "audio", "audio": _data_uri(part.get(kind), f"{where}: a part of type {kind!r}", "audio/wav")}
    raise RequestError(f"{where}: a part of type {kind!r}; there are text, images and audio")


def _data_uri(value: Any, where: str, media_type: str) -> str:
    """The data URI of `url`, `{"url": ...}` or `{"data": base64, "media_type": ...}`."""
    if isinstance(value, Mapping):
        if isinstance(value.get("data"), str):
            return f"data:{value.get('media_type') or media_type};base64,{value['data']}"
        value = value.get("url")
    if not isinstance(value, str) or not value.startswith("data:"):
        raise RequestError(f"{where} must bring its content, as a data URI or base64; nothing is fetched or opened")
    return value


def text_of(content: Content) -> str:
    """The text of a content, without its media."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def media_in(messages: Sequence[Message]) -> Media:
    """The media of messages, in order."""
    found: Media = {}
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            for kind in KINDS:
                if part["type"] == kind:
                    found.setdefault(kind, []).append(part[kind])
    return found
