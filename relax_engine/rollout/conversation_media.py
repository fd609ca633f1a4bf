"""Media that a conversation has collected: those of its prompt, and those that observations or messages brought since.

What lives here: adding some, with the tokens that stand for them. What does not: how messages are rendered (`frames`),
and what media are (`relax_engine.multimodal`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from data_prep.media import MediaReader
from relax_engine.multimodal.content import KINDS, Media, MediaError, open_image, read_medium
from relax_engine.multimodal.encoder import ProcessorSpec, processor_of
from relax_engine.multimodal.processor import MediaBudget, MediaProcessor
from relax_engine.multimodal.prompts import media_parts
from relax_engine.types import Message, Sample


@dataclass(frozen=True, slots=True)
class ConversationMedia:
    """All media of a conversation by kind, in order, and the arrays that the model's encoders read of them."""

    items: Media = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, sample: Sample) -> Self:
        """Those that the sample has."""
        given = sample.multimodal_inputs or {}
        return cls({kind: list(given[kind]) for kind in KINDS if given.get(kind)}, sample.multimodal_train_inputs or {})

    def joined(self, tokens: list[int], items: Media, processor: MediaProcessor) -> tuple[list[int], ConversationMedia]:
        """`tokens` with a placeholder per feature of `items`, and the media so far with `items` behind them.

        Raises:
            MediaError: one does not decode.
            MediaMismatchError: `tokens` have no placeholder, or too many, for them.
        """
        features = processor.features(items)
        whole = processor.expand(tokens, features)
        if not features.train_inputs:
            return whole, self
        everything: Media = {kind: [*self.items.get(kind, []), *items.get(kind, [])] for kind in KINDS}
        return whole, ConversationMedia(
            {kind: media for kind, media in everything.items() if media}, _joined(self.inputs, features.train_inputs)
        )

    @property
    def named(self) -> dict[str, list[Any]]:
        """As `Sample.multimodal_inputs` has them."""
        return {str(kind): items for kind, items in self.items.items()}

    def give(self, sample: Sample) -> None:
        """Make them the sample's."""
        sample.multimodal_inputs = self.named or None
        sample.multimodal_train_inputs = dict(self.inputs) or None


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> Mapping[str, Any]:
    if not first:
        return second
    from relax_engine.multimodal.towers import concatenated

    return {name: tensor.numpy() for name, tensor in concatenated([first, second]).items()}


def run_processor(args: Any) -> MediaProcessor:
    """The processor of a run's model.

    Raises:
        MediaError: the model reads text alone.
    """
    return processor_of(ProcessorSpec(args.hf_checkpoint, MediaBudget.from_config(args)))


def observed_media(observation: Mapping[str, Any]) -> Media:
    """The media of an observation's `multi_modal_data`, such as PIL images; keys may be plural.

    Raises:
        MediaError: one cannot be used, or is of an unknown kind.
    """
    found: Media = {}
    for name, items in (observation.get("multi_modal_data") or {}).items():
        kind = next((kind for kind in KINDS if name in (kind, f"{kind}s")), None)
        if kind is None:
            raise MediaError(f"multi_modal_data has {name!r}; there are {', '.join(KINDS)}")
        for value in items or []:
            found.setdefault(kind, []).append(read_medium(kind, value, MediaReader(None)))
    return found


def flat_text(messages: Sequence[Message], processor: MediaProcessor | None) -> str:
    """Contents of messages one behind the other, where there is no chat template; media as their markers."""
    texts = []
    for message in messages:
        content = message["content"]
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if part["type"] == "text":
                texts.append(str(part["text"]))
            elif processor is not None:
                texts += [processor.marker(kind) for kind in KINDS if kind == part["type"]]
    return "".join(texts)


def opened_media(sample: Sample) -> dict[str, list[Any]]:
    """A sample's media as tools want them: images as PIL images, the rest as the sample carries it."""
    given = sample.multimodal_inputs or {}
    return {kind: [open_image(item) if kind == "image" else item for item in items] for kind, items in given.items()}


def chat_messages(prompt: str | list[Message], sample: Sample) -> list[Message]:
    """A sample's prompt as an agent gets it: OpenAI's chat form, with the media in it.

    Raises:
        MediaError: it has a video, which that form does not know.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not sample.multimodal_inputs:
        return messages
    left = {kind: iter(items) for kind, items in sample.multimodal_inputs.items()}
    made = []
    for message in media_parts(messages)[0]:
        content = message.get("content")
        parts = [_chat_part(part, left) for part in content] if isinstance(content, list) else content
        made.append({**message, "content": parts})
    return made


def _chat_part(part: Mapping[str, Any], left: Mapping[str, Iterator[Any]]) -> Mapping[str, Any]:
    if part["type"] == "text":
        return part
    item = next(left[part["type"]])
    if part["type"] == "image":
        return {"type": "image_url", "image_url": {"url": item}}
    if part["type"] == "audio":
        return {"type": "input_audio", "input_audio": {"data": item.partition(",")[2], "format": "wav"}}
    raise MediaError("agents' messages hold images and audio, no videos")
