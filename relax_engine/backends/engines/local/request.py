"""One generation request as the scheduler sees it, and the batch that it arrived in.

What does not live here: reading the HTTP body (`generate_api.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relax_engine.backends.engines.local.media import MediaPrompt
from relax_engine.backends.engines.local.params import SamplingParams

PrefixKey = tuple[str, tuple[int, ...]]
"""Digest of the media ('' for text) and tokens of a prefix."""


@dataclass(slots=True)
class VersionSpan:
    """Output tokens `[start, end)` were sampled from the weights called `version`."""

    version: str
    start: int
    end: int


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and its (partial) response.

    States: waiting (no row) -> running (owns a cache row) -> finished; a retraction leads from running back
    to waiting with the output kept. `admitted` is the key of the prefix that its last admission
    computed, `start` the column of the first of its tokens; outputs since the
    last admission are recorded in columns `[first_column, cursor)` and are appended to `output_ids` when
    the request leaves its row.
    """

    rid: str
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    input_log_prob_start: int | None = None
    top_log_probs: int = 0
    media: MediaPrompt | None = None
    output_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    input_log_probs: list[float] | None = None
    input_top_log_probs: list[list[tuple[float, int]]] | None = None
    cached_tokens: int = 0
    experts: list[np.ndarray] | None = None
    """The experts that each token but the last was sent to when it was computed first, in parts int16 `[n, choices]`;
    None where nobody asks."""
    retractions: int = 0
    finite: bool = True
    finish: dict[str, Any] | None = None
    admitted: PrefixKey = ("", ())
    start: int = 0
    first_column: int = 0
    created: float = field(default_factory=time.monotonic)
    finished_at: float = 0.0
    version: str = ""

    @property
    def prefix(self) -> tuple[int, ...]:
        """Prompt and output so far: what has to be in the cache before the next token."""
        return self.prompt + tuple(self.output_ids)

    @property
    def prefix_key(self) -> PrefixKey:
        """Equal for requests whose prefixes have equal keys and values in the cache."""
        return ("" if self.media is None else self.media.digest, self.prefix)

    @property
    def delta(self) -> float:
        """What the position of a token behind the prompt is more than its index."""
        return 0 if self.media is None else self.media.delta

    @property
    def remaining(self) -> int:
        """Output tokens still allowed, counted from `output_ids`."""
        return self.params.max_new_tokens - len(self.output_ids)

    def add_experts(self, first: int, sent: np.ndarray) -> None:
        """Take the experts of the tokens from `first` on, but of those that were computed before."""
        if self.experts is not None:
            known = sum(map(len, self.experts)) - first
            self.experts.append(sent[known:])

    def extend_span(self, version: str, end: int) -> None:
        """Attribute the outputs since the last span to `version`."""
        begin = self.spans[-1].end if self.spans else 0
        if end <= begin:
            return
        if self.spans and self.spans[-1].version == version:
            self.spans[-1].end = end
        else:
            self.spans.append(VersionSpan(version, begin, end))


class Batch:
    """The requests of one HTTP call; `on_done` runs in the engine's thread when the last one finishes."""

    def __init__(self, requests: list[Request], on_done: Callable[[], None]) -> None:
        self.requests = requests
        self._open = len(requests)
        self._on_done = on_done

    def request_finished(self) -> None:
        """Count one request; the scheduler calls this exactly once per request."""
        self._open -= 1
        if self._open == 0:
            self._on_done()
