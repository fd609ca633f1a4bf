"""The rollout role: prompts in, scored samples out, as fast as admission allows.

Owns the engines, the data source and the rewards. Finished groups go to the partitions that
`partitions.py` fills.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ray import serve

from relax_engine.backends.engines.client import EngineClient
from relax_engine.components.engine_host import EngineGroup
from relax_engine.components.mode import published_version
from relax_engine.components.partitions import PartitionWriter
from relax_engine.components.role import Role, RoleContext, ingress
from relax_engine.errors import RelaxError
from relax_engine.observe.metrics import MetricsLog, read_metrics
from relax_engine.rewards.executor import RewardExecutor
from relax_engine.rewards.settings import RewardSettings
from relax_engine.rollout.data_source import DataSettings, PromptDataSource
from relax_engine.rollout.evaluation import evaluate_dataset
from relax_engine.rollout.generate import generate_groups
from relax_engine.rollout.sampling import SamplingSettings
from relax_engine.rollout.tokenizer import load_tokenizer
from relax_engine.types import SampleGroup

logger = logging.getLogger(__name__)


class RolloutError(RelaxError):
    """No engine can serve the rollout."""


@dataclass(slots=True)
class _Engine:
    """One engine as the rollout sees it."""

    client: EngineClient
    outstanding: int = 0
    quarantined: str | None = None


class Rollout(Role):
    """Generates partitions `start_step .. num_steps - 1`.

    Colocate: a partition is one wave, a single batched request per engine, after which the engines
    give their cache memory back. Hybrid and fully async: groups are requested one by one as slots
    free up, and generation of later partitions goes on while earlier ones finish; with
    `--deterministic`, waves as in colocate.
    """

    role: ClassVar[str] = "rollout"

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        self.colocate = self.config.mode == "colocate"
        self.in_waves = self.colocate or self.args.deterministic
        self.sampling = SamplingSettings.from_config(self.args)
        self.engines: dict[str, _Engine] = {}
        path = Path(context.run_dir, "eval.jsonl")
        # A resumed run starts with the weights of its first step: what was evaluated of them stays.
        self.evaluations = MetricsLog(path, start_step=context.start_step + 1 if context.start_step else 0)
        self.evaluated = {(line["step"], line["dataset"]) for line in read_metrics(path)} if path.exists() else set()
        self.version = -1
        self._version_changed = asyncio.Condition()

    async def setup(self) -> None:
        """Start the engines, and meanwhile read the prompts and start the reward workers."""
        args = self.args
        self.engine_group = EngineGroup(self.config, self.context.slots)
        starting = asyncio.create_task(self.engine_group.start(args.rollout_engine_init_timeout))
        await asyncio.to_thread(self._prepare)
        urls = await starting
        self.engines = {url: _Engine(EngineClient(url, timeout_s=args.rollout_http_timeout)) for url in urls}

    def _prepare(self) -> None:
        args = self.args
        self.rewards = RewardExecutor(RewardSettings.from_config(args), args)
        self.tokenizer = load_tokenizer(args.hf_checkpoint)
        self.data = PromptDataSource(DataSettings.from_config(args), self.tokenizer, args.n_samples_per_prompt)
        position = self.context.run_state.get("data_position")
        if position:
            self.data.restore(position)
        self.partitions = PartitionWriter(self.config, self.stream, self.data, self.context.start_step, self._sealed)

    async def _sealed(self, rollout_id: int, metrics: dict[str, float]) -> None:
        """A partition is about to be sealed: in colocate mode the devices are the actor's next."""
        if self.colocate and self.args.offload_rollout:
            await asyncio.gather(*(engine.client.release_memory() for engine in self._usable()))
        seconds, reward = metrics["perf/rollout_time"], metrics["rollout/raw_reward"]
        self.emit("rollout", rollout_id=rollout_id, seconds=seconds, reward=reward)

    async def engine_urls(self) -> list[str]:
        """Addresses of the engines."""
        return list(self.engines)

    async def weights_committed(self, version: int, quarantined: dict[str, str]) -> None:
        """Engines hold weights of `version`, except the quarantined ones, which get no more traffic."""
        self.version = version
        for url, reason in quarantined.items():
            if url in self.engines:
                self.engines[url].quarantined = reason
                self.emit("engine_quarantined", engine=url, reason=reason)
        async with self._version_changed:
            self._version_changed.notify_all()

    async def run(self) -> dict[str, Any]:
        """Produce all partitions; raises the first error of any request, reward or write."""
        await self._wait_for_version(self.context.start_step)
        try:
            async with asyncio.TaskGroup() as tasks:
                for rollout_id in range(self.context.start_step, self.context.num_steps):
                    if self.stopping:
                        break
                    self.step = rollout_id
                    await self._evaluate_if_due(rollout_id, tasks)
                    await self._start_partition(tasks)
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        return self.outcome()

    async def finish(self) -> dict[str, Any]:
        """Evaluate the final weights where asked for, once training has ended."""
        before = len(self.phases)
        async with asyncio.TaskGroup() as tasks:
            await self._evaluate_if_due(self.context.num_steps, tasks)
        return {"phases": self.phases[before:]}

    async def close(self) -> None:
        """End engines and reward workers, as far as `setup` came."""
        await self.engine_group.close()
        self.rewards.close()

    async def _start_partition(self, tasks: asyncio.TaskGroup) -> None:
        """Admit as many groups as a partition has and start their generation; a wave is waited for."""
        size = self.args.rollout_batch_size
        width = size if self.in_waves else 1
        requests = []
        for _ in range(0, size, width):
            await self.stream.aadmit(width, deadline_s=self.args.wait_timeout)
            groups = self.data.get_groups(width)
            self.partitions.started([group[0].group_index for group in groups], self.version)
            requests += [tasks.create_task(request) for request in self._requests(groups)]
        if self.in_waves:
            await asyncio.gather(*requests)

    def _requests(self, groups: list[SampleGroup]) -> list[Any]:
        """One coroutine per engine request: groups spread over the usable engines in order."""
        usable = [url for url, engine in self.engines.items() if engine.quarantined is None]
        if not usable:
            reasons = {url: engine.quarantined for url, engine in self.engines.items()}
            raise RolloutError(f"no engine holds the current weights: {reasons}")
        usable.sort(key=lambda url: self.engines[url].outstanding)
        share, rest = divmod(len(groups), len(usable))
        parts = []
        start = 0
        for index, url in enumerate(usable):
            count = share + (index < rest)
            if count:
                part = groups[start : start + count]
                self.engines[url].outstanding += sum(map(len, part))
                parts.append(self._generate(url, part))
            start += count
        return parts

    async def _generate(self, url: str, groups: list[SampleGroup]) -> None:
        """Generate and score `groups` on one engine, and hand them over to be trained."""
        engine = self.engines[url]
        samples = [sample for group in groups for sample in group]
        self.stream.assign([group[0].group_index for group in groups], url)
        started = time.time()
        try:
            await generate_groups(engine.client, groups, self.sampling)
        finally:
            engine.outstanding -= len(samples)
        self.record_phase("generate", started)
        started = time.time()
        await self.rewards.score(samples)
        self.record_phase("reward", started)
        await self.partitions.finished(groups)

    def _usable(self) -> list[_Engine]:
        return [engine for engine in self.engines.values() if engine.quarantined is None]

    async def _wait_for_version(self, version: int) -> None:
        """Return when the engines hold weights of `version` or later."""
        async with self._version_changed:
            await asyncio.wait_for(
                self._version_changed.wait_for(lambda: self.version >= version), self.args.wait_timeout
            )

    async def _evaluate_if_due(self, step: int, tasks: asyncio.TaskGroup) -> None:
        """Evaluate the weights of `step`; unless rollouts are waves, generation goes on meanwhile."""
        args = self.args
        if not args.eval_prompt_data or not args.eval_interval or step % args.eval_interval:
            return
        if step == 0 and args.skip_eval_before_train:
            return
        evaluation = tasks.create_task(self._evaluate(step))
        if self.in_waves:
            await evaluation

    async def _evaluate(self, step: int) -> None:
        args = self.args
        await self._wait_for_version(published_version(self.config, step, end=self.context.num_steps))
        version = self.version
        for name, paths in args.eval_prompt_data.items():
            if (step, name) in self.evaluated:
                continue
            started = time.time()
            result = await evaluate_dataset(
                [engine.client for engine in self._usable()],
                DataSettings.from_config(args, prompt_data=paths),
                SamplingSettings.for_evaluation(args),
                self.rewards,
                self.tokenizer,
                samples_per_prompt=args.n_samples_per_eval_prompt,
                reward_key=args.reward_key,
            )
            self.record_phase("evaluate", started)
            self.evaluations.write(step, {"version": version, "dataset": name, **result.metrics(f"eval/{name}")})
            self.emit("evaluation", step=step, dataset=name, score=result.mean_reward)


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    """The first leaf of an exception group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


RolloutDeployment = serve.deployment(serve.ingress(ingress(Rollout))(Rollout))
