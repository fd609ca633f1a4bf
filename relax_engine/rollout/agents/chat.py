"""OpenAI's chat completions: `POST /v1/chat/completions` read into a `TurnRequest`, and answers written back.

Unknown fields are ignored, as are those of sampling: temperature and top-p are the policy's. A stream is the whole
answer in one chunk.
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


def read_request(body: Mapping[str, Any]) -> TurnRequest:
    """Read a request.

    Raises:
        RequestError: it breaks the contract.
    """
    if int(body.get("n") or 1) != 1:
        raise RequestError("n must be 1: send one request per answer")
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise RequestError("messages must be a list")
    stop = body.get("stop") or ()
    return TurnRequest(
        messages=check_messages([_message(message, number) for number, message in enumerate(messages)]),
        tools=tuple(body.get("tools") or ()) if body.get("tool_choice") != "none" else (),
        template_options=dict(body.get("chat_template_kwargs") or {}),
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        seed=body.get("seed"),
        model=str(body.get("model") or "policy"),
        stream=bool(body.get("stream")),
        log_probs=bool(body.get("logprobs")),
    )


def _message(message: Any, number: int) -> Message:
    where = f"messages[{number}]"
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} is not an object")
    role = str(message.get("role"))
    result: Message = {
        "role": "system" if role == "developer" else role,
        "content": content_of(message.get("content"), where, ("text", "refusal")),
    }
    if message.get("tool_calls"):
        result["tool_calls"] = [
            {
                "id": call.get("id"),
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": read_arguments(call["function"].get("arguments")),
                },
            }
            for call in message["tool_calls"]
        ]
    if message.get("tool_call_id"):
        result["tool_call_id"] = message["tool_call_id"]
    return result


def write_answer(answer: Answer, request: TurnRequest, name: str) -> dict[str, Any]:
    """The body of a completion."""
    choice = {
        "index": 0,
        "message": _answer_message(answer),
        "finish_reason": answer.finish,
        "logprobs": _log_probs(answer) if request.log_probs else None,
    }
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [choice],
        "usage": _usage(answer),
    }


def write_stream(answer: Answer, request: TurnRequest, name: str) -> Iterator[bytes]:
    """The events of a streamed completion: one chunk, and `[DONE]`."""
    body = write_answer(answer, request, name)
    choice = body["choices"][0]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
    chunk = {
        **body,
        "object": "chat.completion.chunk",
        "choices": [
            {"index": 0, "delta": delta, "finish_reason": choice["finish_reason"], "logprobs": choice["logprobs"]}
        ],
    }
    yield f"data: {json.dumps(chunk)}\n\n".encode()
    yield b"data: [DONE]\n\n"


def write_error(error: RequestError) -> dict[str, Any]:
    """The body of an error."""
    return {"error": {"message": str(error), "type": "invalid_request_error", "param": None, "code": error.code}}


def stream_error(error: RequestError) -> Iterator[bytes]:
    """An error in a stream that has begun."""
    yield f"data: {json.dumps(write_error(error))}\n\n".encode()


def _answer_message(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.content or None}
    if not answer.tool_calls:
        message["content"] = answer.content
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.tool_calls
        ]
    return message


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": answer.prompt_tokens + answer.output_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def _log_probs(answer: Answer) -> dict[str, Any]:
    content = [
        {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
        for text, value in answer.log_probs
    ]
    return {"content": content, "refusal": None}
