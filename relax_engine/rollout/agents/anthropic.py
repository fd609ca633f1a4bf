"""Anthropic's messages: `POST /v1/messages` read into a `TurnRequest`, and answers written back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from relax_engine.rollout.agents.messages import (
    Answer,
    RequestError,
    TurnRequest,
    check_messages,
    content_of,
    read_arguments,
)
from relax_engine.types import Message

_SIGNATURE = "cG9saWN5"  # clients hand thoughts back only where they are signed
HEARTBEAT = b'event: ping\ndata: {"type": "ping"}\n\n'


def read_request(body: Mapping[str, Any]) -> TurnRequest:
    """Read a request.

    Raises:
        RequestError: it breaks the contract.
    """
    given = body.get("messages")
    if not isinstance(given, list):
        raise RequestError("messages must be a list")
    system = content_of(body.get("system"), "system")
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for number, message in enumerate(given):
        messages += _messages(message, f"messages[{number}]")
    choice = (body.get("tool_choice") or {}).get("type")
    return TurnRequest(
        messages=check_messages(messages),
        tools=tuple(map(_tool, body.get("tools") or ())) if choice != "none" else (),
        template_options=dict(body.get("chat_template_kwargs") or {}),
        max_tokens=body.get("max_tokens"),
        stop=tuple(body.get("stop_sequences") or ()),
        seed=body.get("seed"),
        model=str(body.get("model") or "policy"),
        stream=bool(body.get("stream")),
    )


def _messages(message: Any, where: str) -> list[Message]:
    """One message of blocks as chat messages: results of tools come before the text beside them."""
    role, content = message.get("role"), message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise RequestError(f"{where}: content must be text or a list of blocks")
    texts: list[Any] = []
    calls: list[dict[str, Any]] = []
    results: list[Message] = []
    for block in content:
        kind = block.get("type")
        if kind == "tool_use":
            function = {"name": block.get("name"), "arguments": read_arguments(block.get("input"))}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            text = content_of(block.get("content"), where)
            results.append({"role": "tool", "content": text, "tool_call_id": block.get("tool_use_id")})
        elif kind not in ("thinking", "redacted_thinking"):
            texts.append(block)
    text = content_of(texts, where)
    if role == "assistant":
        return [{"role": role, "content": text, **({"tool_calls": calls} if calls else {})}]
    return [*results, *([{"role": role, "content": text}] if texts or not results else [])]


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if "input_schema" not in tool:
        raise RequestError(f"tool {tool.get('name')!r} has no input_schema; tools that a server runs are not supported")
    function = {"name": tool.get("name"), "description": tool.get("description") or ""}
    return {"type": "function", "function": {**function, "parameters": tool["input_schema"]}}


def write_answer(answer: Answer, request: TurnRequest, name: str) -> dict[str, Any]:
    """The body of a message."""
    content: list[dict[str, Any]] = []
    if answer.reasoning:
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": _SIGNATURE})
    if answer.content or not answer.tool_calls:
        content.append({"type": "text", "text": answer.content})
    for call in answer.tool_calls:
        arguments = read_arguments(call.arguments)
        given = arguments if isinstance(arguments, dict) else {"arguments": arguments}
        content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": reasons[answer.finish],
        "stop_sequence": None,
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "output_tokens": answer.output_tokens,
            "cache_read_input_tokens": answer.cached_tokens,
            "cache_creation_input_tokens": 0,
        },
    }


def write_stream(answer: Answer, request: TurnRequest, name: str) -> Iterator[bytes]:
    """The events of a streamed message: `message_start`, its blocks, `message_stop`."""
    body = write_answer(answer, request, name)
    yield _event({"type": "message_start", "message": {**body, "content": [], "stop_reason": None}})
    for index, block in enumerate(body["content"]):
        empty, delta = _delta(block)
        yield _event({"type": "content_block_start", "index": index, "content_block": empty})
        yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    reason = {"stop_reason": body["stop_reason"], "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": reason, "usage": {"output_tokens": answer.output_tokens}})
    yield _event({"type": "message_stop"})


def _delta(block: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A block before its content, and the content."""
    if block["type"] == "text":
        return {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    if block["type"] == "thinking":
        return {**block, "thinking": ""}, {"type": "thinking_delta", "thinking": block["thinking"]}
    return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}


def write_error(error: RequestError) -> dict[str, Any]:
    """The body of an error."""
    kind = {401: "authentication_error", 503: "overloaded_error"}.get(error.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


def stream_error(error: RequestError) -> Iterator[bytes]:
    """An error in a stream that has begun."""
    yield _event(write_error(error))


def _event(event: Mapping[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
