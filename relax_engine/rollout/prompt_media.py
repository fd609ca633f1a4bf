"""The media of prompt rows: found in columns and messages, read, and encoded with the prompt.

What lives here: what a row's media are, and errors that name the row. What does not: decoding and tokens
(`relax_engine.multimodal`), and the order of rows (`data_source`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.errors import DataError
from data_prep.media import MediaReader
from data_prep.sources import parse_sources
from relax_engine.multimodal.content import KINDS, Media, MediaError, read_medium
from relax_engine.multimodal.encoder import MediaEncoder, ProcessorSpec
from relax_engine.multimodal.media import MediaMismatchError
from relax_engine.multimodal.processor import MediaBudget
from relax_engine.multimodal.prompts import column_media, marked, media_parts
from relax_engine.rollout.prompts import PromptDataError

if TYPE_CHECKING:
    from relax_engine.multimodal.processor import Encoded


class PromptMediaError(PromptDataError):
    """The media of a row cannot be used."""


@dataclass(frozen=True, slots=True)
class MediaSettings:
    """Where prompts' media are, and how they are prepared."""

    keys: Mapping[str, str]
    """Column by kind, `--multimodal-keys`."""
    model: str
    """Directory of the model, with its processor."""
    budget: MediaBudget
    root: str | None = None
    fetch: bool = False
    skip_invalid: bool = False
    workers: int = 0
    deadline_s: float = 600.0

    @classmethod
    def from_config(cls, args: Any) -> MediaSettings:
        """From the flat configuration."""
        return cls(
            keys=args.multimodal_keys,
            model=args.hf_checkpoint,
            budget=MediaBudget.from_config(args),
            root=args.media_root,
            fetch=args.fetch_media,
            skip_invalid=args.sft_invalid_multimodal_strategy == "skip",
            workers=args.mm_processor_pool_size,
            deadline_s=args.wait_timeout,
        )


@dataclass(frozen=True, slots=True)
class FoundMedia:
    """A prompt whose media stand as parts or markers in it, and these media in order."""

    prompt: str | list[dict[str, Any]]
    media: Media


class PromptMedia:
    """Reads and encodes the media of rows."""

    def __init__(self, settings: MediaSettings, prompt_data: Sequence[str]) -> None:
        self.settings = settings
        self._encoder = MediaEncoder(
            ProcessorSpec(settings.model, settings.budget), workers=settings.workers, deadline_s=settings.deadline_s
        )
        self._reader = MediaReader(_root(settings.root, prompt_data), settings.fetch)

    @property
    def parallel(self) -> int:
        """Prompts that are worth preparing at a time."""
        return max(1, self.settings.workers)

    def read(self, prompt: str | list[dict[str, Any]], row: Mapping[str, Any], where: str) -> FoundMedia:
        """The media of a row, from its messages' parts and its columns.

        Raises:
            PromptMediaError: one cannot be read; names the row, the medium and why.
        """
        try:
            given = column_media(row, self.settings.keys)
            if not isinstance(prompt, str):
                prompt, brought = media_parts(prompt)
                for kind, items in brought.items():
                    if kind in given:
                        raise MediaError(f"its messages hold {kind}s, and so does column {self.settings.keys[kind]!r}")
                    given[kind] = items
            else:
                prompt = marked(prompt, self._encoder.processor.marker)
        except MediaError as error:
            raise PromptMediaError(f"{where}: {error}") from error
        media: Media = {}
        for kind in KINDS:
            for position, value in enumerate(given.get(kind, [])):
                try:
                    media.setdefault(kind, []).append(read_medium(kind, value, self._reader))
                except MediaError as error:
                    name = self.settings.keys.get(kind, "messages")
                    raise PromptMediaError(f"{where}, {name}[{position}]: {error}") from error
        return FoundMedia(prompt, media)

    def encode(self, text: str, found: FoundMedia, where: str) -> Encoded:
        """Tokens and tensors of a prompt, rendered to `text`.

        Raises:
            PromptMediaError: placeholders and media do not match, or media cannot be prepared.
        """
        try:
            return self._encoder.encode(text, found.media)
        except (MediaError, MediaMismatchError) as error:
            raise PromptMediaError(f"{where}: {error}") from error

    def train_inputs(self, media: Mapping[Any, Sequence[Any]]) -> dict[str, Any]:
        """The tensors of media that a sample brings back from a checkpoint."""
        return self._encoder.processor.features(media).train_inputs

    def close(self) -> None:
        """End the processes."""
        self._encoder.close()


def _root(given: str | None, prompt_data: Sequence[str]) -> Path | None:
    """The folder of media: the given one, else that of the first prompt file, where it is a local one."""
    if given is not None:
        return Path(given)
    try:
        first = next(iter(parse_sources(prompt_data)), None)
    except DataError as error:
        raise PromptDataError(f"--prompt-data {list(prompt_data)!r}: {error}") from error
    return None if first is None or "://" in first.path else Path(first.path).parent
