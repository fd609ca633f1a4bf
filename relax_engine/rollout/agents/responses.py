"""OpenAI's responses: `POST /v1/responses` read into a `TurnRequest`, and answers written back.

Nothing is stored: every request brings the whole history as `input` items, and `previous_response_id` is refused.
"""

from __future__ import annotations

import json
import time
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

HEARTBEAT = b": waiting\n\n"
_TEXTS = ("input_text", "output_text", "text", "refusal")


def read_request(body: Mapping[str, Any]) -> TurnRequest:
    """Read a request.

    Raises:
        RequestError: it breaks the contract.
    """
    if body.get("previous_response_id"):
        raise RequestError("previous_response_id is not supported: send the whole history as input")
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list):
        raise RequestError("input must be text or a list of items")
    messages = [{"role": "system", "content": str(body["instructions"])}] if body.get("instructions") else []
    for number, item in enumerate(items):
        _append(messages, item, f"input[{number}]")
    return TurnRequest(
        messages=check_messages(messages),
        tools=tuple(map(_tool, body.get("tools") or ())) if body.get("tool_choice") != "none" else (),
        template_options=dict(body.get("chat_template_kwargs") or {}),
        max_tokens=body.get("max_output_tokens"),
        seed=body.get("seed"),
        model=str(body.get("model") or "policy"),
        stream=bool(body.get("stream")),
    )


def _append(messages: list[Message], item: Any, where: str) -> None:
    """Add an item; the calls of one answer, and its text, are one message."""
    kind = item.get("type", "message") if isinstance(item, Mapping) else None
    if kind == "reasoning":
        return
    if kind == "message":
        role = str(item.get("role"))
        message = {
            "role": "system" if role == "developer" else role,
            "content": content_of(item.get("content"), where, _TEXTS),
        }
        messages.append(message)
    elif kind == "function_call":
        call = {
            "id": item.get("call_id"),
            "type": "function",
            "function": {"name": item.get("name"), "arguments": read_arguments(item.get("arguments"))},
        }
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        content = content_of(item.get("output"), where, _TEXTS)
        messages.append({"role": "tool", "content": content, "tool_call_id": item.get("call_id")})
    else:
        raise RequestError(f"{where}: items of type {kind!r} are not supported")


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise RequestError(f"tools of type {tool.get('type')!r} are not supported; give functions")
    function = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def write_answer(answer: Answer, request: TurnRequest, name: str) -> dict[str, Any]:
    """The body of a response."""
    output: list[dict[str, Any]] = []
    if answer.reasoning:
        summary = [{"type": "summary_text", "text": answer.reasoning}]
        output.append({"type": "reasoning", "id": f"rs_{name}", "summary": summary})
    if answer.content or not answer.tool_calls:
        text = {"type": "output_text", "text": answer.content, "annotations": []}
        message = {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed"}
        output.append({**message, "content": [text]})
    for call in answer.tool_calls:
        item = {"type": "function_call", "id": f"fc_{call.id}", "call_id": call.id, "status": "completed"}
        output.append({**item, "name": call.name, "arguments": call.arguments})
    cut = answer.finish == "length"
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": int(time.time()),
        "model": request.model,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "output": output,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": answer.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.output_tokens,
        },
    }


def write_stream(answer: Answer, request: TurnRequest, name: str) -> Iterator[bytes]:
    """The events of a streamed response: created, its items, and completed or incomplete."""
    body = write_answer(answer, request, name)
    begun = {**body, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(body["output"]):
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        if item["type"] == "message":
            place = {"item_id": item["id"], "output_index": index, "content_index": 0}
            text = item["content"][0]["text"]
            events.append({"type": "response.output_text.delta", **place, "delta": text, "logprobs": []})
            events.append({"type": "response.output_text.done", **place, "text": text, "logprobs": []})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": f"response.{body['status']}", "response": body})
    for number, event in enumerate(events):
        yield _event({**event, "sequence_number": number})


def write_error(error: RequestError) -> dict[str, Any]:
    """The body of an error."""
    return {"error": {"message": str(error), "type": "invalid_request_error", "param": None, "code": error.code}}


def stream_error(error: RequestError) -> Iterator[bytes]:
    """An error in a stream that has begun."""
    response = {"object": "response", "status": "failed", "error": {"code": error.code, "message": str(error)}}
    yield _event({"type": "response.failed", "sequence_number": 0, "response": response})


def _event(event: Mapping[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
