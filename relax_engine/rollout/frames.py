"""What a chat template puts between a model's answer and its next one, for messages that come after an answer.

The answer's own tokens are kept as the model sampled them, and are never rendered again: only the rest of its frame,
the messages, and the head of the next answer are. What lives here: rendering of that in-between. What does not: which
messages come (`multi_turn`, `agents`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relax_engine.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = "\u2042response\u2042"
_QUESTION: Message = {"role": "user", "content": "?"}


def frame_text(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    options: Mapping[str, Any] | None = None,
) -> str:
    """What the chat template puts behind an answer when `messages` follow it, up to the head of the next answer.

    Rendered behind an answer of its own, and cut there, so that nothing depends on how the template shows earlier
    turns (many leave out the thoughts of all but the last). Tool results stand behind a call where the template shows
    calls: those that do demand one.
    """
    render = _Renderer(tokenizer, tools, options or {})
    said: Message = {"role": "assistant", "content": _MARK}
    call = {"id": "call00000", "type": "function", "function": {"name": _MARK, "arguments": {}}}
    calling: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
    if not messages or messages[0].get("role") != "tool" or not render.shows(calling):
        return render.behind([said, *messages], more=True)
    end, without = render.behind([said], more=False), render.behind([calling], more=False)
    return end + render.behind([calling, *messages], more=True).removeprefix(without)


def encode_frame(tokenizer: PreTrainedTokenizerBase, text: str, last_token: int) -> list[int]:
    """Token ids of a frame behind an answer that ends with `last_token`: an end token is not there twice."""
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False, verbose=False)
    ended = tokens[:1] == [last_token] and last_token in tokenizer.added_tokens_decoder
    return tokens[1:] if ended else tokens


class _Renderer:
    """A template with its tools and options."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> None:
        self.tokenizer, self.options = tokenizer, dict(options)
        self.tools: list[Any] | None = [dict(tool) for tool in tools] or None

    def shows(self, turn: Message) -> bool:
        """Whether the mark in the turn is shown."""
        return _MARK in self._text([turn], more=False)

    def behind(self, turns: Sequence[Message], *, more: bool) -> str:
        """The text of `turns` after the mark in the first of them; with `more`, the head of a next answer too."""
        return self._text(turns, more=more).partition(_MARK)[2]

    def _text(self, turns: Sequence[Message], *, more: bool) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                [_QUESTION, *turns], tools=self.tools, tokenize=False, add_generation_prompt=more, **self.options
            )
        )
