"""Prompts with media encoded under a deadline, in processes of their own where there are many.

What lives here: `MediaEncoder`, and its processors by process. What does not: what a processor does (`processor.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from relax_engine.multimodal.content import MediaError
from relax_engine.multimodal.families import Kind
from relax_engine.multimodal.processor import Encoded, MediaBudget, MediaProcessor

if TYPE_CHECKING:
    from relax_engine.rewards.pool import WorkerPool

_ENCODE = "relax_engine.multimodal.encoder:encode_in_worker"


@dataclass(frozen=True, slots=True)
class ProcessorSpec:
    """Which processor: that of a model directory, under a budget."""

    directory: str
    budget: MediaBudget


@functools.lru_cache(4)
def processor_of(spec: ProcessorSpec) -> MediaProcessor:
    """The processor, read once in a process.

    Raises:
        MediaError: it is a text model, or has no preprocessor.
    """
    return MediaProcessor(spec.directory, spec.budget)


def encode_in_worker(args: ProcessorSpec, request: tuple[str, Mapping[Kind, Sequence[Any]]]) -> Encoded:
    """`MediaProcessor.encode` in a worker process."""
    return processor_of(args).encode(*request)


class MediaEncoder:
    """Encodes prompts, in `workers` processes or, with none, where it is called. May be called from several threads."""

    def __init__(self, spec: ProcessorSpec, *, workers: int = 0, deadline_s: float = 600.0) -> None:
        """`deadline_s` bounds one prompt in a worker, in seconds; a worker that misses it is replaced."""
        self.processor = processor_of(spec)
        self.workers, self._deadline_s = workers, deadline_s
        self._pool: WorkerPool | None = None
        if workers:
            from relax_engine.rewards.pool import WorkerPool

            self._pool = WorkerPool(args=spec, max_workers=workers, preload=["relax_engine.multimodal.processor"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def encode(self, text: str, media: Mapping[Kind, Sequence[Any]]) -> Encoded:
        """Tokens and tensors; see `MediaProcessor.encode`.

        Raises:
            MediaError, MediaMismatchError: see there; also when a worker missed its deadline or died.
        """
        if self._pool is None or not any(media.values()):
            return self.processor.encode(text, media)
        result = self._pool.submit(_ENCODE, (text, dict(media)), self._deadline_s).result()
        if result.cause:
            raise MediaError(f"a prompt with media cannot be encoded: {result.cause}")
        encoded: Encoded = result.value
        return encoded

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.close()
