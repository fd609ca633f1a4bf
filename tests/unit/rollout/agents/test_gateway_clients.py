"""The gateway through the packages that agents use: what they are told, and that no token is made twice."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import openai
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

ADD: dict[str, Any] = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
CALL = '<think>sum?</think>\n<tool_call>{"name": "add", "arguments": {"a": 2,  "b": 3}}</tool_call>'


def openai_client(served: Any) -> openai.AsyncOpenAI:
    served.clients.append(openai.AsyncOpenAI(base_url=served.base_url, api_key=served.key, max_retries=0))
    return served.clients[-1]


def anthropic_client(served: Any) -> anthropic.AsyncAnthropic:
    served.clients.append(anthropic.AsyncAnthropic(base_url=served.gateway.url, api_key=served.key, max_retries=0))
    return served.clients[-1]


def assert_one_context(served: Any, tokenizer: Any) -> None:
    """Each prompt begins with the one before it and what was said then; nothing of that was rendered again."""
    policy = served.policy
    for number in range(1, len(policy.prompts)):
        before = policy.prompts[number - 1] + policy.said[number - 1]
        assert policy.prompts[number][: len(before)] == before
    (leaf,) = served.session.forest.leaves()
    assert leaf.tokens == policy.prompts[-1] + policy.said[-1]
    behind = leaf.tokens[leaf.prompt_length :]
    assert [t for t, m in zip(behind, leaf.loss_mask, strict=True) if m] == [t for said in policy.said for t in said]
    sampled = [p for p, m in zip(leaf.log_probs, leaf.loss_mask, strict=True) if m]
    assert sampled == [-0.5 * (i + 1) for said in policy.said for i in range(len(said))]
    assert {p for p, m in zip(leaf.log_probs, leaf.loss_mask, strict=True) if not m} <= {0.0}
    covered = [i for span in leaf.versions for i in range(span.start, span.end)]
    assert covered == [i for i, m in enumerate(leaf.loss_mask) if m]


async def test_chat_completions(served: Any, tokenizer: Any) -> None:
    served.policy.texts = [CALL, "It is  5 "]
    client = openai_client(served)
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}]
    tools: Any = [{"type": "function", "function": ADD}]
    first = await client.chat.completions.create(model="m", messages=messages, tools=tools, temperature=0.1)
    choice = first.choices[0]
    assert (choice.finish_reason, choice.message.content, first.model) == ("tool_calls", None, "m")
    (call,) = choice.message.tool_calls or []
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 2, "b": 3}')
    assert first.usage is not None
    assert first.usage.completion_tokens == len(served.policy.said[0])
    messages += [choice.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "5"}]
    second = await client.chat.completions.create(model="m", messages=messages, tools=tools, logprobs=True, seed=9)
    assert second.choices[0].message.content == "It is  5 "
    content = second.choices[0].logprobs.content
    assert [entry.logprob for entry in content][:3] == [-0.5, -1.0, -1.5]
    assert_one_context(served, tokenizer)
    shown = served.policy.prompts[1][len(served.policy.prompts[0]) + len(served.policy.said[0]) :]
    assert tokenizer.decode(shown) == "\n<|im_start|>tool\n5<|im_end|>\n<|im_start|>assistant\n"
    # The policy's own temperature; the client's seed.
    assert [params["temperature"] for params in served.policy.params] == [0.7, 0.7]
    assert served.policy.params[0]["sampling_seed"] != served.policy.params[1]["sampling_seed"]


async def test_streams(served: Any, tokenizer: Any) -> None:
    served.policy.texts = ["one", CALL, "three", "four"]
    client = openai_client(served)
    question: Any = [{"role": "user", "content": "count"}]
    chunks = [c async for c in await client.chat.completions.create(model="m", messages=question, stream=True)]
    assert chunks[-1].choices[0].delta.content == "one"
    history = [*question, {"role": "assistant", "content": "one"}, {"role": "user", "content": "on"}]
    async with client.responses.stream(model="m", input=history, tools=[{"type": "function", **ADD}]) as stream:
        response = await stream.get_final_response()
    assert [item.type for item in response.output] == ["reasoning", "function_call"]
    async with anthropic_client(served).messages.stream(model="m", max_tokens=50, messages=question) as messages:
        assert await messages.get_final_text() == "three"


async def test_responses(served: Any, tokenizer: Any) -> None:
    served.policy.texts = [CALL, "5"]
    client = openai_client(served)
    tools: Any = [{"type": "function", **ADD}]
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "2 + 3?"}]}]
    first = await client.responses.create(model="m", instructions="Be brief.", input=items, tools=tools)
    call = next(item for item in first.output if item.type == "function_call")
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "5"})
    second = await client.responses.create(model="m", instructions="Be brief.", input=items, tools=tools)
    assert (second.output_text, second.status) == ("5", "completed")
    assert_one_context(served, tokenizer)
    with pytest.raises(openai.BadRequestError, match="previous_response_id is not supported"):
        await client.responses.create(model="m", input="x", previous_response_id=first.id)


async def test_messages(served: Any, tokenizer: Any) -> None:
    served.policy.texts = [CALL, "5"]
    client = anthropic_client(served)
    tools: Any = [{"name": "add", "description": "Add.", "input_schema": ADD["parameters"]}]
    messages: list[Any] = [{"role": "user", "content": "2 + 3?"}]
    given: Any = {"model": "m", "max_tokens": 150, "system": "Be brief.", "tools": tools}
    first = await client.messages.create(messages=messages, **given)
    assert (first.stop_reason, [block.type for block in first.content]) == ("tool_use", ["thinking", "tool_use"])
    call = first.content[1]
    assert call.input == {"a": 2, "b": 3}
    messages.append({"role": "assistant", "content": first.content})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "5"}]}
    messages.append({"role": "user", "content": [result]})
    second = await client.messages.create(messages=messages, **given)
    assert (second.content[0].text, second.stop_reason) == ("5", "end_turn")
    assert served.policy.params[0]["max_new_tokens"] == 150
    assert_one_context(served, tokenizer)


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
async def test_a_harness_runs_its_loop_in_one_context(protocol: str, served: Any, tokenizer: Any) -> None:
    """pydantic-ai calls the tool, sends its result, and takes the last answer, over each of the protocols."""
    served.policy.texts = [CALL, "<think>so</think>it is 5"]
    if protocol == "messages":
        model: Any = AnthropicModel("m", provider=AnthropicProvider(anthropic_client=anthropic_client(served)))
    else:
        kind = OpenAIChatModel if protocol == "chat" else OpenAIResponsesModel
        model = kind("m", provider=OpenAIProvider(openai_client=openai_client(served)))
    agent = Agent(model, system_prompt="Use add.")
    seen = []

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        seen.append((a, b))
        return a + b

    result = await agent.run("What is 2 + 3?")
    assert (result.output.strip(), seen) == ("it is 5", [(2, 3)])
    assert_one_context(served, tokenizer)


async def test_errors_have_the_shape_of_the_protocol(served: Any) -> None:
    question: Any = [{"role": "user", "content": "x" * 5000}]
    with pytest.raises(openai.BadRequestError, match="maximum context length is 4000 tokens") as overflow:
        await openai_client(served).chat.completions.create(model="m", messages=question)
    assert overflow.value.code == "context_length_exceeded"
    with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
        await anthropic_client(served).messages.create(model="m", max_tokens=5, messages=question)
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\]: a user message must not be empty"):
        await openai_client(served).chat.completions.create(model="m", messages=[{"role": "user", "content": " "}])
    with pytest.raises(openai.BadRequestError, match="n must be 1"):
        await openai_client(served).chat.completions.create(model="m", messages=question, n=2)
    image: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    with pytest.raises(openai.BadRequestError, match="this policy reads text alone"):
        await openai_client(served).chat.completions.create(model="m", messages=image)
    served.gateway.close_session(served.key)
    with pytest.raises(openai.AuthenticationError, match="RELAX_SESSION_ID"):
        await openai_client(served).chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(anthropic.AuthenticationError):
        await anthropic_client(served).messages.create(
            model="m", max_tokens=5, messages=[{"role": "user", "content": "x"}]
        )


async def test_an_answer_that_did_not_arrive_is_given_again(served: Any) -> None:
    served.policy.texts = ["once", "twice"]
    question: Any = [{"role": "user", "content": "say"}]
    client = openai_client(served)
    say = served.session.generate

    async def slow(*request: Any) -> Any:
        await asyncio.sleep(0.3)
        return await say(*request)

    served.session.generate = slow
    with pytest.raises(openai.APITimeoutError):
        await client.with_options(timeout=0.1).chat.completions.create(model="m", messages=question)
    await asyncio.sleep(0.5)
    again = await client.chat.completions.create(model="m", messages=question)
    assert again.choices[0].message.content == "once"
    assert len(served.session.forest.nodes) == 1
    other = await client.chat.completions.create(model="m", messages=question)
    assert other.choices[0].message.content == "twice"
    assert len(served.session.forest.leaves()) == 2
