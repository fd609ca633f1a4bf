"""Turning pending samples into finished ones: engine requests, continued by token prefix when they are cut off.

What lives here: requests and their ids. What does not: which engine serves them (`pool`), users' own generation
(`custom_generate`), agents (`agents`), and who cuts requests off (the rollout role).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from relax_engine.rollout.partial import extend, is_finished, seam_tokens, take_back
from relax_engine.rollout.pool import EnginePool, PooledEngine, RolloutError, asked_of
from relax_engine.rollout.routing import Affinity
from relax_engine.rollout.sampling import SamplingSettings
from relax_engine.types import Sample, SampleGroup, SampleStatus

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CUT = "cut"
"""Id prefix of requests that may be cut off and continued."""
KEEP = "keep"
"""Id prefix of requests that must run to their end."""


class OwnGeneration(Protocol):
    """Generation in place of one engine request per group."""

    async def generate(
        self,
        groups: Sequence[SampleGroup],
        sampling: SamplingSettings,
        pool: EnginePool,
        announce: Callable[[str], None],
    ) -> None:
        """Fill all unfinished samples of the groups, in place; a group may get further rows."""

    async def cut(self) -> None:
        """End what runs, as far as aborted engine requests do not; its samples are ABORTED."""


class Generator:
    """Generates responses for groups, in place.

    A sample ends finished, or, when its request was cut off (`interruption`), ABORTED with what it has and one more
    `abort_count`; given again, it continues behind its last token. With the sampling of the embedded engine, and
    the same weights, the pieces together are the response that one request would have given.
    """

    def __init__(
        self,
        pool: EnginePool,
        sampling: SamplingSettings,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        custom: OwnGeneration | None = None,
        max_aborted: int | None = None,
        on_engine: Callable[[Sequence[int], str], None] | None = None,
        evaluation: bool = False,
    ) -> None:
        """Set up.

        Args:
            pool: Where requests go.
            sampling: What every request asks for.
            tokenizer: Decodes responses that came in several pieces.
            custom: Generation by a user's function or by agents, in place of engine requests.
            max_aborted: A sample that was cut off this often is not cut off again.
            on_engine: Told the groups and the engine of each request.
            evaluation: Requests are those of an evaluation, which nothing cuts off.
        """
        self.pool, self.sampling, self.tokenizer, self.custom = pool, sampling, tokenizer, custom
        self.max_aborted, self.evaluation = max_aborted, evaluation
        self._interrupting = False
        self._interruptions = 0
        self._on_engine = on_engine
        self._numbers = itertools.count()
        self._seam = seam_tokens(sampling.stop)

    async def generate(self, groups: Sequence[SampleGroup], engine: PooledEngine | None = None) -> None:
        """One request for all unfinished samples of `groups`, admitted together and in order.

        Raises:
            RolloutError: an engine ended a request that nobody had cut off; says what it said.
            EngineCallError: see `EnginePool.run`.
        """
        samples = [sample for group in groups for sample in group if not is_finished(sample)]
        if not samples:
            return
        numbers = [group[0].group_index for group in groups]
        kept = {group[0].group_index for group in groups if self.is_protected(group)}
        cut_before = [sample.abort_count for sample in samples]

        def announce(url: str) -> None:
            if self._on_engine is not None:
                self._on_engine(numbers, url)

        if self.custom is not None:
            await self.custom.generate(groups, self.sampling, self.pool, announce)
        else:
            await self._request(samples, kept, engine, announce)
        for sample, before in zip(samples, cut_before, strict=True):
            if sample.status is SampleStatus.ABORTED and sample.abort_count == before:
                sample.abort_count += 1

    async def _request(
        self, samples: list[Sample], kept: set[int], engine: PooledEngine | None, announce: Callable[[str], None]
    ) -> None:
        for sample in samples:
            if sample.response_length:
                take_back(sample, self._seam)
        prompts = [sample.tokens for sample in samples]
        params = [self.sampling.request(s.index, s.prompt_length, generated=s.response_length) for s in samples]
        number = next(self._numbers)
        rids = [f"{self._prefix(sample, kept)}-{sample.index}-{number}" for sample in samples]
        interruptions = -1 if self._interrupting else self._interruptions
        media = [sample.multimodal_inputs for sample in samples]
        outputs = await self.pool.run(
            lambda client: client.generate_batch(
                prompts, params, rids=rids, media=media, routed_experts=self.sampling.routed_experts
            ),
            samples=len(samples),
            what=f"the request for groups {sorted({sample.group_index for sample in samples})}",
            engine=engine,
            on_engine=asked_of(samples, announce),
            affinity=Affinity(f"group {samples[0].group_index}", prompts[0]),
        )
        for sample, output in zip(samples, outputs, strict=True):
            if output.finish_reason["type"] == "abort" and self._interruptions == interruptions:
                raise RolloutError(
                    f"the engine gave up sample {sample.index} of group {sample.group_index} after "
                    f"{sample.response_length + len(output.output_ids)} tokens: "
                    f"{output.finish_reason.get('message', 'no reason given')}"
                )
            sample.sent_tokens += len(sample.tokens)
            sample.cached_tokens += output.cached_tokens
            extend(sample, output, self.tokenizer)

    async def cut(self) -> None:
        """Cut off everything that runs."""
        await self.pool.abort()
        if self.custom is not None:
            await self.custom.cut()

    async def cut_from(self, url: str) -> None:
        """Cut off at one engine what another may continue, and return when it has handed over what it had of it."""
        with self.interruption():
            await self.pool.abort(CUT, only=url)
            await self.pool.answered(CUT, url)

    def _prefix(self, sample: Sample, kept: set[int]) -> str:
        return "eval" if self.evaluation else KEEP if sample.group_index in kept else CUT

    def is_protected(self, group: Iterable[Sample]) -> bool:
        """Whether a sample of the group was cut off so often that the group must now be left to finish."""
        return self.max_aborted is not None and any(sample.abort_count >= self.max_aborted for sample in group)

    @contextlib.contextmanager
    def interruption(self) -> Iterator[None]:
        """While it lasts, requests end because they are cut off, and not for a fault."""
        self._interruptions += 1
        self._interrupting = True
        try:
            yield
        finally:
            self._interrupting = False
