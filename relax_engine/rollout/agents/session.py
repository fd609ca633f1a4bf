"""One session: the requests of one agent, answered by the policy, and what they leave behind.

What lives here: turning a request into tokens, tokens into an answer, and committing both. What does not: HTTP
(`gateway`), the agent's process (`process`), and what of a session is trained (`exports`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from data_prep.media import MediaReader
from relax_engine.backends.engines.types import EngineRefusedError, GenerateOutput
from relax_engine.multimodal.content import Media, MediaError, read_medium
from relax_engine.multimodal.media import MediaMismatchError
from relax_engine.rollout.agents.forest import Node, SessionForest
from relax_engine.rollout.agents.messages import Answer, RequestError, TurnRequest, history_keys, media_in
from relax_engine.rollout.agents.parsing import split_calls, split_reasoning
from relax_engine.rollout.conversation_media import ConversationMedia
from relax_engine.rollout.frames import encode_frame, frame_text
from relax_engine.rollout.sampling import SamplingSettings, sample_seed
from relax_engine.types import Message, Sample, WeightVersionSpan

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from relax_engine.multimodal.processor import MediaProcessor

Generate = Callable[[list[int], dict[str, Any], Mapping[str, Any]], Awaitable[GenerateOutput]]
"""(prompt ids, sampling parameters, media by kind) -> output, from whichever engine."""


class SessionCutError(RequestError):
    """The session was cut off; whatever its agent asks for now is lost."""

    def __init__(self) -> None:
        super().__init__("the session was cut off", status=503, code="session_cut_off")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What all sessions of a run share."""

    tokenizer: PreTrainedTokenizerBase
    sampling: SamplingSettings
    template_options: dict[str, Any]
    tool_parser: str
    reasoning_parser: str
    processor: MediaProcessor | None = None
    """None where the model reads text alone."""

    @property
    def max_context(self) -> int | None:
        """Most tokens of a context."""
        return self.sampling.max_context_tokens


class Gate:
    """Lets requests through while it is open: sessions that are started early wait at it."""

    def __init__(self, *, is_open: bool) -> None:
        self._open = asyncio.Event()
        if is_open:
            self._open.set()

    @property
    def is_open(self) -> bool:
        """Whether requests go through."""
        return self._open.is_set()

    def open(self) -> None:
        """Let all through."""
        self._open.set()

    async def wait(self) -> None:
        """Return when it is open; whoever waits has the deadline of the session."""
        await self._open.wait()


@dataclass(eq=False)
class Session:
    """The state of one agent's session.

    `generate` reaches engines; it is there from the moment the gate opens. Requests may run at the same time (agents
    within the agent); each is committed when its answer is complete.
    """

    sample: Sample
    settings: SessionSettings
    gate: Gate
    generate: Generate | None = None
    forest: SessionForest = field(default_factory=SessionForest)
    cut: bool = False
    requests: int = 0
    generating_s: float = 0.0
    """Seconds that engines took, summed over requests."""
    undelivered: dict[str, Answer] = field(default_factory=dict)
    """Answers whose connection broke, by request: a client that asks again gets what it missed, not another sample."""

    async def answer(self, request: TurnRequest) -> Answer:
        """Answer a request, and commit it.

        Raises:
            RequestError: it does not fit into the context, or the template refuses it.
            SessionCutError: it was aborted.
        """
        if (missed := self.undelivered.pop(_request_key(request), None)) is not None:
            return missed
        self.requests += 1
        number = self.requests
        await self.gate.wait()
        keys, context = history_keys(request.messages), request.context_key()
        parent = self.forest.find(keys, context)
        new = list(request.messages[0 if parent is None else len(parent.messages) :])
        brought = media_in(new)
        if brought and self.settings.processor is None:
            raise RequestError(f"the messages hold {' and '.join(brought)}s; this policy reads text alone")
        text = self._text(request, parent, new)
        if brought:
            prompt, media = await asyncio.to_thread(self._prompt, text, parent, brought)
        else:
            prompt, media = self._prompt(text, parent, brought)
        params = self._params(request, len(prompt), number)
        if self.cut or self.generate is None:
            raise SessionCutError
        started = time.monotonic()
        try:
            output = await self.generate(prompt, params, media.named)
        except EngineRefusedError as error:
            if error.status >= 500:
                raise
            raise RequestError(str(error), code="context_length_exceeded") from error
        finally:
            self.generating_s += time.monotonic() - started
        if self.cut or output.finish_reason["type"] == "abort":
            self.cut = True
            raise SessionCutError
        answer = self._read(request, output)
        node = _node(request, keys, context, parent, prompt, output, answer)
        node.media = media
        self.forest.commit(node)
        return answer

    def keep(self, request: TurnRequest, answer: Answer) -> None:
        """The answer did not reach the client."""
        self.undelivered[_request_key(request)] = answer

    def _text(self, request: TurnRequest, parent: Node | None, new: list[Message]) -> str:
        """What comes behind the state that the request goes on from, as the chat template renders it."""
        settings = self.settings
        options = settings.template_options | dict(request.template_options)
        try:
            if parent is not None:
                return frame_text(settings.tokenizer, new, tools=request.tools, options=options)
            tools: list[Any] | None = list(request.tools) or None
            return str(
                settings.tokenizer.apply_chat_template(
                    new, tools=tools, tokenize=False, add_generation_prompt=True, **options
                )
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise RequestError(f"the chat template refuses the messages: {error}") from error

    def _prompt(self, text: str, parent: Node | None, brought: Media) -> tuple[list[int], ConversationMedia]:
        """The tokens before the answer, of what the request goes on from as they were, and all media among them."""
        processor, tokenizer = self.settings.processor, self.settings.tokenizer
        before, known = ([], ConversationMedia()) if parent is None else (parent.tokens, parent.media)
        if parent is None:
            new: list[int] = tokenizer.encode(text, add_special_tokens=False, verbose=False)
        else:
            new = encode_frame(tokenizer, text, parent.tokens[-1])
        if processor is None or not brought:
            return before + new, known
        reader = MediaReader(None)
        try:
            items: Media = {kind: [read_medium(kind, item, reader) for item in each] for kind, each in brought.items()}
            whole, media = known.joined(new, items, processor)
        except (MediaError, MediaMismatchError) as error:
            raise RequestError(f"the messages' media cannot be used: {error}") from error
        return before + whole, media

    def _params(self, request: TurnRequest, prompt_tokens: int, number: int) -> dict[str, Any]:
        sampling, limit = self.settings.sampling, self.settings.max_context
        params = sampling.request(self.sample.index, prompt_tokens)
        most = sampling.max_new_tokens if request.max_tokens is None else request.max_tokens
        room = most if limit is None else limit - prompt_tokens
        if room < 1:
            raise RequestError(
                f"this model's maximum context length is {limit} tokens, and the messages take {prompt_tokens}",
                code="context_length_exceeded",
            )
        params["max_new_tokens"] = min(sampling.max_new_tokens, most, room)
        params["sampling_seed"] = sample_seed(params["sampling_seed"], number if request.seed is None else request.seed)
        if request.stop:
            params["stop"] = [*sampling.stop, *request.stop]
        return params

    def _read(self, request: TurnRequest, output: GenerateOutput) -> Answer:
        tokenizer, settings = self.settings.tokenizer, self.settings
        ids, matched = output.output_ids.tolist(), output.finish_reason.get("matched")
        ended = isinstance(matched, int) or (ids and ids[-1] == tokenizer.eos_token_id)
        text = str(tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=False))
        if isinstance(matched, str):
            text = text.partition(matched)[0]
        reasoning, rest = split_reasoning(text, settings.reasoning_parser)
        content, calls = split_calls(rest, settings.tool_parser) if request.tools else (rest, ())
        length = output.finish_reason["type"] == "length"
        log_probs: tuple[tuple[str, float], ...] = ()
        if request.log_probs:
            log_probs = tuple(
                (str(tokenizer.decode([i])), float(p)) for i, p in zip(ids, output.log_probs, strict=True)
            )
        return Answer(
            content=content.strip() if calls or reasoning else content,
            reasoning=reasoning,
            tool_calls=calls,
            finish="tool_calls" if calls else "length" if length else "stop",
            prompt_tokens=output.prompt_tokens,
            output_tokens=len(ids),
            cached_tokens=output.cached_tokens,
            log_probs=log_probs,
        )


def _node(
    request: TurnRequest,
    keys: tuple[str, ...],
    context: str,
    parent: Node | None,
    prompt: list[int],
    output: GenerateOutput,
    answer: Answer,
) -> Node:
    ids = output.output_ids.tolist()
    start = len(prompt) if parent is None else parent.prompt_length
    shown = len(prompt) - start - (0 if parent is None else len(parent.loss_mask))
    before = ([], [], []) if parent is None else (parent.loss_mask, parent.log_probs, parent.versions)
    offset = len(prompt) - start
    message = answer.message()
    return Node(
        keys=(*keys, *history_keys([message])),
        context=context,
        messages=(*request.messages, message),
        tokens=prompt + ids,
        prompt_length=start,
        loss_mask=[*before[0], *[0] * shown, *[1] * len(ids)],
        log_probs=[*before[1], *[0.0] * shown, *output.log_probs.tolist()],
        versions=[
            *before[2],
            *(
                WeightVersionSpan(int(span.version), offset + span.start, offset + span.end)
                for span in output.weight_versions
            ),
        ],
        finish=output.finish_reason["type"],
        parent=parent,
    )


def _request_key(request: TurnRequest) -> str:
    return "\n".join([request.context_key(), *history_keys(request.messages), str(request.max_tokens)])
