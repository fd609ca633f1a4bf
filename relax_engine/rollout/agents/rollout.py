"""`--use-agentic-rollout`: every sample is a session of an agent, a process of its own that talks to the policy.

What lives here: which agents run, how often a failed one is started again, and what is counted. What does not: the
order in which groups are made and placed (`rollout.flow`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from relax_engine.backends.engines.types import GenerateOutput
from relax_engine.multimodal.model import family_of
from relax_engine.rollout.agents.exports import Export, ExportError, read_exports, to_samples
from relax_engine.rollout.agents.gateway import Gateway
from relax_engine.rollout.agents.process import AgentCommand, AgentProcess, Reaper, end_strays, start_agent
from relax_engine.rollout.agents.session import Gate, Session, SessionSettings
from relax_engine.rollout.conversation_media import chat_messages, run_processor
from relax_engine.rollout.partial import begin_again, is_finished
from relax_engine.rollout.pool import EnginePool, RolloutError, asked_of
from relax_engine.rollout.routing import Affinity
from relax_engine.rollout.sampling import SamplingSettings
from relax_engine.types import Sample, SampleGroup, SampleStatus

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

Ending = Literal["completed", "failed", "timed_out", "killed", "cut_off"]
_LOGGED_FAILURES = 5


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How agents run.

    Attributes:
        command: What is run for each session.
        timeout_s: Longest run of an agent.
        attempts: How often a session may be tried.
        concurrency: Samples whose agents run at the same time.
        session: What sessions share.
        reward_key: Key under which a failed session of an evaluation scores 0, None for a plain number.
        evaluation: Whether these are the sessions of evaluations.
    """

    command: AgentCommand
    timeout_s: float
    attempts: int
    concurrency: int
    session: SessionSettings
    reward_key: str | None = None
    evaluation: bool = False

    @classmethod
    def from_config(
        cls, args: Any, tokenizer: PreTrainedTokenizerBase, sampling: SamplingSettings, *, evaluation: bool = False
    ) -> Self:
        """From the flat configuration."""
        groups = args.agentic_concurrency or args.over_sampling_batch_size
        concurrency = groups * args.n_samples_per_prompt
        if evaluation and args.agentic_eval_concurrency is not None:
            concurrency = args.agentic_eval_concurrency * args.n_samples_per_eval_prompt
        pairs = dict(item.partition("=")[::2] for item in args.agent_env)
        return cls(
            AgentCommand(args.agent_command, args.agent_cwd, pairs),
            args.agent_timeout,
            args.agentic_max_attempts,
            concurrency,
            SessionSettings(
                tokenizer,
                sampling,
                dict(args.apply_chat_template_kwargs or {}),
                args.agentic_tool_call_parser,
                args.agentic_reasoning_parser,
                run_processor(args) if family_of(args.hf_checkpoint) is not None else None,
            ),
            args.reward_key,
            evaluation,
        )


@dataclass(eq=False)
class _Running:
    """An agent that runs: its session, and its process."""

    session: Session
    key: str
    process: AgentProcess
    waiting: asyncio.Task[int]


class AgentRollout:
    """Makes the samples of groups by agents; takes the place of engine requests in a `Generator`.

    Accounting: every session that is started ends as exactly one of completed, failed, timed_out, killed (by a signal
    that nobody here sent) and cut_off. A failed one is tried again from the start, `attempts` times in all; then its
    sample is FAILED, and the other agents of its group are ended. Whoever holds the group leaves it out as a whole.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.gateway = Gateway()
        self._watcher: Reaper | None = None
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._early: dict[int, _Running] = {}
        self._running: set[_Running] = set()
        self._keys: set[str] = set()

    async def __aenter__(self) -> Self:
        self._watcher = Reaper()
        await self.gateway.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(self._end(running) for running in [*self._running, *self._early.values()]))
        self._early.clear()
        await asyncio.to_thread(end_strays, self._keys)
        await self.gateway.close()
        if self._watcher is not None:
            await asyncio.to_thread(self._watcher.close)

    async def generate(
        self,
        groups: Sequence[SampleGroup],
        sampling: SamplingSettings,
        pool: EnginePool,
        announce: Callable[[str], None],
    ) -> None:
        """Fill all samples of the groups, in place; a session with several contexts adds rows to its group.

        Raises:
            RolloutError: the command cannot be started.
            EnginesLostError: no engine is left.
        """
        async with asyncio.TaskGroup() as tasks:
            for group in groups:
                tasks.create_task(self._group(group, pool, announce))

    async def prelaunch(self, groups: Sequence[SampleGroup]) -> None:
        """Start the agents of groups that come next; their requests wait until the samples are generated."""
        for sample in [sample for group in groups for sample in group]:
            if sample.index not in self._early:
                self._early[sample.index] = self._start(sample, Gate(is_open=False))
                self.counts["prelaunched"] += 1

    async def cut(self) -> None:
        """End all agents that run; their samples are ABORTED, and begin again when they are generated again."""
        for running in list(self._running):
            running.session.cut = True
        await asyncio.gather(*(self._end(running) for running in list(self._running)))

    def take_counts(self) -> dict[str, int]:
        """What was counted since the last call."""
        counts = dict(self.counts)
        self.counts.clear()
        return counts

    async def _group(self, group: SampleGroup, pool: EnginePool, announce: Callable[[str], None]) -> None:
        logical = _logical(group)
        tasks = [asyncio.create_task(self._sample(sample, pool, announce)) for sample in logical]
        try:
            for task in asyncio.as_completed(tasks):
                await task
                if not self.settings.evaluation and any(sample.status is SampleStatus.FAILED for sample in logical):
                    break
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        if self.settings.evaluation:
            return
        if any(sample.status is SampleStatus.FAILED for sample in logical):
            self.counts["groups_dropped"] += 1
            for sample in logical:
                sample.status = SampleStatus.FAILED
        else:
            group.extend(row for result in results if isinstance(result, list) for row in result)

    async def _sample(self, sample: Sample, pool: EnginePool, announce: Callable[[str], None]) -> list[Sample]:
        """Fill the sample; returns further rows that its session exported."""
        begin_again(sample)
        async with self._slots:
            for attempt in range(self.settings.attempts):
                ending, rows = await self._attempt(sample, pool, announce)
                if ending == "cut_off":
                    sample.status = SampleStatus.ABORTED
                    return []
                if ending == "completed":
                    first, *more = rows
                    for name in Sample.__slots__:
                        if name not in ("engine", "timings"):
                            setattr(sample, name, getattr(first, name))
                    return more
                if attempt + 1 < self.settings.attempts:
                    self.counts["retried"] += 1
        sample.status = SampleStatus.FAILED
        if self.settings.evaluation:
            self._score_failure(sample)
        return []

    def _score_failure(self, sample: Sample) -> None:
        key = self.settings.reward_key
        sample.reward = 0.0 if key is None else {key: 0.0}
        sample.loss_mask, sample.rollout_log_probs = [], []

    async def _attempt(
        self, sample: Sample, pool: EnginePool, announce: Callable[[str], None]
    ) -> tuple[Ending, list[Sample]]:
        """One agent from its start to its end."""
        running = self._early.pop(sample.index, None) or self._start(sample, Gate(is_open=False))
        self.counts["sessions"] += 1
        session = running.session
        session.sample, session.generate = sample, _generator(pool, sample, announce)
        session.gate.open()
        self._running.add(running)
        ending: Ending = "cut_off"
        try:
            started = time.monotonic()
            ending = await self._watch(running, sample)
            exports: list[Export] = []
            if ending == "completed":
                try:
                    exports = read_exports(running.process.output(), session.forest)
                except (ExportError, UnicodeDecodeError) as error:
                    self._note(running, sample, str(error))
                    ending = "failed"
            sample.session_id = running.key
            sample.non_generation_time = max(0.0, time.monotonic() - started - session.generating_s)
            return ending, to_samples(exports, sample, self.settings.session.tokenizer)
        finally:
            self.counts[ending] += 1
            self._running.discard(running)
            await asyncio.shield(self._end(running))

    async def _watch(self, running: _Running, sample: Sample) -> Ending:
        """How the agent ends."""
        done, _ = await asyncio.wait({running.waiting}, timeout=self.settings.timeout_s)
        if running.session.cut:
            return "cut_off"
        if not done:
            self._note(running, sample, f"it runs longer than {self.settings.timeout_s:g} s (--agent-timeout)")
            return "timed_out"
        status = running.waiting.result()
        if status < 0:
            self._note(running, sample, f"signal {-status} ended it")
            return "killed"
        if status > 0:
            self._note(running, sample, f"it ended with status {status}")
            return "failed"
        return "completed"

    def _start(self, sample: Sample, gate: Gate) -> _Running:
        settings = self.settings
        assert self._watcher is not None, "agents start inside the `async with` block"
        session = Session(sample, settings.session, gate)
        key = self.gateway.open(session)
        self._keys.add(key)
        prompt = sample.prompt
        messages = chat_messages(prompt, sample)
        metadata = {**sample.metadata, "index": sample.index, "split": "eval" if settings.evaluation else "train"}
        try:
            process = start_agent(
                settings.command,
                session=key,
                base_url=self.gateway.url,
                mode="eval" if settings.evaluation else "train",
                group=sample.group_index,
                given=json.dumps({"messages": messages, "label": sample.label, "metadata": metadata}),
                watcher=self._watcher,
            )
        except OSError as error:
            self.gateway.close_session(key)
            raise RolloutError(f"--agent-command {settings.command.command!r} cannot be started: {error}") from error
        return _Running(session, key, process, asyncio.create_task(process.wait()))

    async def _end(self, running: _Running) -> None:
        self.gateway.close_session(running.key)
        running.session.cut = True
        running.session.gate.open()
        await running.process.end()
        with contextlib.suppress(asyncio.CancelledError):
            await running.waiting

    def _note(self, running: _Running, sample: Sample, cause: str) -> None:
        self.counts["failures"] += 1
        if self.counts["failures"] <= _LOGGED_FAILURES:
            tail = running.process.log_tail().strip()
            logger.warning("the agent of sample %d failed: %s. It printed: %s", sample.index, cause, tail or "nothing")


def _logical(group: SampleGroup) -> list[Sample]:
    """The samples to make; rows beyond the first of a session, from when it was made before, leave the group."""
    first: dict[int, Sample] = {}
    for sample in list(group):
        if first.setdefault(sample.index, sample) is not sample and not is_finished(sample):
            group.remove(sample)
    return [sample for sample in first.values() if not is_finished(sample)]


def _generator(
    pool: EnginePool, sample: Sample, announce: Callable[[str], None]
) -> Callable[[list[int], dict[str, Any], Mapping[str, Any]], Any]:
    """Requests of one session: to the engine that the run's policy chooses, and to another one if that dies."""

    async def generate(prompt: list[int], params: dict[str, Any], media: Mapping[str, Any]) -> GenerateOutput:
        (output,) = await pool.run(
            lambda client: client.generate_batch([prompt], [params], media=[media]),
            samples=1,
            what=f"a request of the agent of sample {sample.index}",
            on_engine=asked_of([sample], announce),
            affinity=Affinity(f"session {sample.index}", prompt),
        )
        return output

    return generate
