"""Names for short hooks: environments, generation functions and rewards that read like their description.

    from relax_engine.rollout.toolbox import *

Environments: `BaseInteractionEnv`, `obs`, `has_answer`, `extract`, `parse`, `tools`, `should_stop`.
Generation functions: `Sample`, `build_env`, `engine`, `tokenize`, `max_turns`, `finalize`.
Rewards: `Sample`, `extract_answer`, `is_exact_match`, `is_well_formatted`, `judge_model`, `parse_verdict`.

They know the run from the call that they are part of. `docs/hooks.md` shows a hook of each kind made of them. What does
not live here: anything that the engine itself needs.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from relax_engine.backends.engines.types import GenerateOutput
from relax_engine.rewards import judge
from relax_engine.rewards.boxed import last_boxed
from relax_engine.rewards.extract import after_thoughts, last_answer
from relax_engine.rewards.functions import current_args
from relax_engine.rewards.genrm import ask
from relax_engine.rollout.current import current_call
from relax_engine.rollout.environment import BaseInteractionEnv, load_build_env
from relax_engine.rollout.frames import encode_frame, frame_text
from relax_engine.rollout.pool import RolloutError
from relax_engine.rollout.sampling import sample_seed
from relax_engine.rollout.tokenizer import cached_tokenizer
from relax_engine.types import Message, Sample, SampleStatus, WeightVersionSpan

__all__ = [
    "BaseInteractionEnv",
    "Sample",
    "build_env",
    "engine",
    "extract",
    "extract_answer",
    "finalize",
    "has_answer",
    "is_exact_match",
    "is_well_formatted",
    "judge_model",
    "max_turns",
    "obs",
    "parse",
    "parse_verdict",
    "should_stop",
    "tokenize",
    "tool",
    "tools",
]

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_THREADS = ThreadPoolExecutor(thread_name_prefix="environment")

# -- environments ------------------------------------------------------------------------------


def obs(text: Any, role: str = "tool") -> dict[str, Any]:
    """An observation that shows `text`."""
    return {"obs_str": str(text), "role": role}


def extract_answer(response: str) -> str | None:
    """The last `<answer>...</answer>`, or else the last box, of what follows the thoughts; None without either."""
    text = after_thoughts(response)
    answer = last_answer(text)
    return last_boxed(text) if answer is None else answer


def has_answer(response: str) -> bool:
    """Whether there is an answer to extract."""
    return extract_answer(response) is not None


extract = extract_answer


class Arguments(dict[str, Any]):
    """Arguments of a call; hashable, so that calls may be members of sets."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(json.dumps(self, sort_keys=True, default=str))


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool in a response."""

    name: str
    args: Arguments


def parse(response: str) -> Call | None:
    """The first `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` of a response; None without a good one."""
    match = _CALL.search(response)
    try:
        call = json.loads(match[1]) if match else None
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments") or {}
    return Call(call["name"], Arguments(arguments)) if isinstance(arguments, dict) else None


@dataclass(frozen=True, slots=True)
class ToolFunction:
    """A function that the model may call."""

    function: Callable[..., Any]

    async def execute(self, args: Mapping[str, Any]) -> str:
        """Its result as text; what it raises is told to the model."""
        try:
            result = self.function(**args)
            return str(await result if inspect.isawaitable(result) else result)
        except Exception as error:  # noqa: BLE001 - arguments are the model's
            return f"Error: {type(error).__name__}: {error}"


class Tools(dict[str, ToolFunction]):
    """Functions by name; a name that nobody gave answers with the names that there are."""

    def __missing__(self, name: str) -> ToolFunction:
        return ToolFunction(lambda **_: f"Error: there is no tool {name!r}; there are: {', '.join(sorted(self))}")


tools = Tools()
"""What `@tool` registered."""


def tool(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let the model call the function, by its name."""
    tools[function.__name__] = ToolFunction(function)
    return function


def should_stop(memory: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last two entries are the same: the model goes round in circles."""
    return len(memory) > 1 and memory[-1] == memory[-2]


# -- generation --------------------------------------------------------------------------------


class _Blocking:
    """An environment whose coroutines are run to their end when they are called, in a thread of their own."""

    def __init__(self, environment: BaseInteractionEnv, timeout_s: float) -> None:
        self._environment, self._timeout_s = environment, timeout_s

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._environment, name)
        if not inspect.iscoroutinefunction(value):
            return value
        return lambda *arguments: _THREADS.submit(asyncio.run, value(*arguments)).result(self._timeout_s)


def build_env(sample: Sample, args: Any) -> Any:
    """The environment of `rollout_interaction_env_path`; its methods may be called without `await`.

    A call waits up to `--wait-timeout`, and everything else with it: environments that wait for others belong in
    `relax_engine.rollout.multi_turn.generate`.
    """
    return _Blocking(load_build_env(args.rollout_interaction_env_path)(sample=sample, args=args), args.wait_timeout)


class _MaxTurns:
    """`args.max_turns` of the present call, as a number for `range`."""

    def __index__(self) -> int:
        return int(current_call().args.max_turns)


max_turns: Any = _MaxTurns()


@dataclass(frozen=True, slots=True)
class Generated:
    """One answer: `ids`, their `log_probs`, and the `text`; empty where no token was left to sample."""

    ids: list[int]
    log_probs: list[float]
    text: str


class _Engine:
    """The engine of the present call."""

    async def generate(self, tokens: Sequence[int]) -> Generated:
        """Sample behind `tokens` with the run's parameters, as far as the context allows."""
        call = current_call()
        if call.prompt_length is None:
            call.prompt_length = len(tokens)
        limit = call.args.rollout_max_context_len or call.prompt_length + call.params["max_new_tokens"]
        if len(tokens) >= limit or _cut_off(call.outputs):
            return Generated([], [], "")
        asked = {
            **call.params,
            "max_new_tokens": min(call.params["max_new_tokens"], limit - len(tokens)),
            "sampling_seed": sample_seed(call.params["sampling_seed"], len(call.outputs)),
        }
        (output,) = await call.client.generate_batch([tokens], [asked], media=[call.sample.multimodal_inputs])
        call.outputs.append((len(tokens), output))
        return Generated(output.output_ids.tolist(), output.log_probs.tolist(), output.text)


engine = _Engine()


def tokenize(messages: Message | Sequence[Message] | str) -> list[int]:
    """Token ids of text, or of what the chat template puts between the last answer and the next for messages."""
    call = current_call()
    tokenizer = cached_tokenizer(call.args.hf_checkpoint)
    if isinstance(messages, str):
        ids: list[int] = tokenizer.encode(messages, add_special_tokens=False)
        return ids
    given = [messages] if isinstance(messages, Mapping) else list(messages)
    text = frame_text(tokenizer, given, options=call.args.apply_chat_template_kwargs)
    sampled = call.outputs[-1][1].output_ids.tolist() if call.outputs else []
    return encode_frame(tokenizer, text, sampled[-1] if sampled else -1)


def finalize(
    sample: Sample,
    tokens: Sequence[int],
    loss_mask: Sequence[int],
    log_probs: Sequence[float],
    rewards: Sequence[float] = (),
) -> Sample:
    """Fill the sample; what goes beyond the context is cut off.

    TRUNCATED if the last answer was cut by its length, or the context was full; ABORTED if a request was; else
    COMPLETED. `rewards` go to `metadata["environment"]`.

    Raises:
        RolloutError: the lists have different lengths.
    """
    call = current_call()
    if len(loss_mask) != len(log_probs) or len(loss_mask) > len(tokens):
        raise RolloutError(
            f"finalize got {len(tokens)} tokens, {len(loss_mask)} mask entries and {len(log_probs)} log-probs; "
            "mask and log-probs have one entry for each token behind the prompt"
        )
    prompt = len(tokens) - len(loss_mask)
    room = (call.args.rollout_max_context_len or len(tokens)) - prompt
    full = len(loss_mask) > room
    sample.tokens = list(tokens[: prompt + room])
    sample.rollout_tokens = sample.tokens[prompt:]
    sample.response_length = len(sample.rollout_tokens)
    sample.loss_mask, sample.rollout_log_probs = list(loss_mask[:room]), list(log_probs[:room])
    sample.weight_versions = [
        WeightVersionSpan(int(span.version), at - prompt + span.start, at - prompt + span.end)
        for at, output in call.outputs
        for span in output.weight_versions
    ]
    tokenizer = cached_tokenizer(call.args.hf_checkpoint)
    sample.response = str(tokenizer.decode(sample.rollout_tokens, skip_special_tokens=True))
    ended = call.outputs[-1][1].finish_reason["type"] if call.outputs else "length"
    sample.status = SampleStatus.COMPLETED if ended == "stop" and not full else SampleStatus.TRUNCATED
    if _cut_off(call.outputs):
        sample.status = SampleStatus.ABORTED
    sample.metadata["environment"] = {"turns": len(call.outputs), "rewards": [float(reward) for reward in rewards]}
    return sample


def _cut_off(outputs: Sequence[tuple[int, GenerateOutput]]) -> bool:
    return bool(outputs) and outputs[-1][1].finish_reason["type"] == "abort"


# -- rewards -----------------------------------------------------------------------------------


def is_exact_match(answer: str | None, label: str | None) -> bool:
    """Whether the answer is the label, white space around aside; nothing equals an empty label."""
    return bool(answer and label and answer.strip() == label.strip())


def is_well_formatted(response: str) -> bool:
    """Whether the response has thoughts, closed once, and one answer after them (`--rm-type format`)."""
    from relax_engine.rewards.format import format_reward

    return format_reward(None, Sample(response=response)) == 1.0


class _JudgeModel:
    """The judge at `--genrm-url`."""

    def generate(
        self, *, prompt: Any, answer: str | None, label: str | None, multimodal_inputs: Any = None
    ) -> Awaitable[str]:
        """Its answer to whether `answer` is `label`; `parse_verdict` reads it.

        Raises:
            ValueError: there are media, which judges here do not see.
        """
        if multimodal_inputs:
            raise ValueError("judge_model reads text alone, and the sample has multimodal_inputs")
        return ask(current_args(), judge.grade_prompt(Sample(prompt=prompt, response=answer or "", label=label)))


judge_model = _JudgeModel()


def parse_verdict(judge_response: str) -> float:
    """1.0 if the judge said yes, else 0.0."""
    return float(judge.read_judgement(judge_response) is True)
