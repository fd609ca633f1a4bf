"""Evaluation during training: every data set, on the weights of one version, one line each in `eval.jsonl`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relax_engine.components.mode import evaluation_is_due, published_version
from relax_engine.errors import first_cause
from relax_engine.observe.metrics import MetricsLog, read_metrics
from relax_engine.rollout.custom_rollout import RolloutFunction, check_evaluation
from relax_engine.rollout.data_source import DataSettings
from relax_engine.rollout.evaluation import evaluate_dataset
from relax_engine.rollout.generate import Generator
from relax_engine.rollout.own_generation import evaluation_generation
from relax_engine.rollout.pool import RolloutError
from relax_engine.rollout.sampling import SamplingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from relax_engine.components.rollout import Rollout
    from relax_engine.rewards.executor import RewardExecutor
    from relax_engine.rollout.hooks import RolloutHooks
    from relax_engine.rollout.pool import EnginePool


class Evaluator:
    """Evaluates in the background of the rollout.

    Invariant: all responses of an evaluation come from the version that its line names. New weights wait for it
    (`finish_active`); sampling for training, and training itself, do not.
    """

    def __init__(
        self,
        role: Rollout,
        pool: EnginePool,
        rewards: RewardExecutor,
        tokenizer: PreTrainedTokenizerBase,
        hooks: RolloutHooks,
    ) -> None:
        self._role, self._pool, self._rewards, self._tokenizer, self._hooks = role, pool, rewards, tokenizer, hooks
        context = role.context
        path = Path(context.run_dir, "eval.jsonl")
        # A resumed run starts with the weights of its first step: what was evaluated of them stays.
        self._log = MetricsLog(path, start_step=context.start_step + 1 if context.start_step else 0)
        self._done = {(line["step"], line["dataset"]) for line in read_metrics(path)} if path.exists() else set()
        self._tasks: list[asyncio.Task[None]] = []
        self._active: set[asyncio.Task[None] | None] = set()

    async def start_if_due(self, step: int, *, wait: bool) -> None:
        """Evaluate the weights of `step` if the flags say so."""
        for task in [task for task in self._tasks if task.done()]:
            await _result(task)
            self._tasks.remove(task)
        if not self._pool.engines or not evaluation_is_due(self._role.config, step):
            return
        self._tasks.append(asyncio.create_task(self._evaluate(step), name=f"evaluation of step {step}"))
        if wait:
            await self.finish()

    async def finish(self) -> None:
        """Wait for all evaluations; raises what one of them raised."""
        await self._wait(list(self._tasks))
        self._tasks.clear()

    async def finish_active(self) -> None:
        """Wait for the evaluations that run now: all those that were due for the weights that engines hold.

        Raises:
            RolloutError: one takes longer than `--eval-timeout`.
        """
        await self._wait([task for task in self._tasks if task in self._active])

    async def _wait(self, tasks: list[asyncio.Task[None]]) -> None:
        if not tasks:
            return
        timeout = self._role.args.eval_timeout
        _, running = await asyncio.wait(tasks, timeout=timeout)
        if running:
            names = sorted(task.get_name() for task in running)
            raise RolloutError(f"{', '.join(names)} did not end in {timeout:g} s; raise --eval-timeout")
        for task in tasks:
            await _result(task)

    async def _evaluate(self, step: int) -> None:
        role, args = self._role, self._role.args
        await role.wait_for_version(published_version(role.config, step, end=role.context.num_steps))
        version = role.version
        self._active.add(asyncio.current_task())
        if args.eval_function_path is not None:
            return await self._evaluate_by_function(step, version)
        sampling = SamplingSettings.for_evaluation(args)
        async with evaluation_generation(args, self._tokenizer, sampling, version=lambda: version) as custom:
            generator = Generator(self._pool, sampling, tokenizer=self._tokenizer, custom=custom, evaluation=True)
            await self._evaluate_datasets(step, version, generator)

    async def _evaluate_datasets(self, step: int, version: int, generator: Generator) -> None:
        role, args = self._role, self._role.args
        for name, paths in args.eval_prompt_data.items():
            if (step, name) in self._done:
                continue
            started = time.time()
            result = await evaluate_dataset(
                generator.generate,
                DataSettings.from_config(args, prompt_data=paths),
                self._rewards,
                self._tokenizer,
                workers=len(self._pool.usable()),
                samples_per_prompt=args.n_samples_per_eval_prompt,
                reward_key=args.reward_key,
            )
            role.record_phase("evaluate", started)
            if not set(result.versions) <= {version}:
                raise RolloutError(
                    f"the evaluation of {name!r} for version {version} was answered by versions {result.versions}"
                )
            metrics: dict[str, Any] = {}
            if not self._hooks.log_evaluation(step, {name: result.to_data()}, metrics):
                metrics |= result.metrics(f"eval/{name}")
            self._log.write(step, {"version": version, "dataset": name, **metrics})
            role.emit("evaluation", step=step, dataset=name, score=result.mean_reward)

    async def _evaluate_by_function(self, step: int, version: int) -> None:
        """As the user's function does it; the scores are what it returns."""
        role, path = self._role, self._role.args.eval_function_path
        started = time.time()
        function = RolloutFunction(path, self._pool, role.args, role.stream)
        output = await function.call(step, None, evaluation=True)
        role.record_phase("evaluate", started)
        for name, entry in check_evaluation(path, output).items():
            if (step, name) in self._done:
                continue
            metrics: dict[str, Any] = dict(getattr(output, "metrics", None) or {})
            score = float(np.mean(entry["rewards"]))
            if not self._hooks.log_evaluation(step, {name: entry}, metrics):
                metrics[f"eval/{name}"] = score
                if "truncated" in entry:
                    metrics[f"eval/{name}-truncated_ratio"] = float(np.mean(entry["truncated"]))
            self._log.write(step, {"version": version, "dataset": name, **metrics})
            role.emit("evaluation", step=step, dataset=name, score=score)


async def _result(task: asyncio.Task[None]) -> None:
    """Raise what an evaluation raised: the first error of its requests."""
    try:
        await task
    except BaseExceptionGroup as group:
        raise first_cause(group) from None
