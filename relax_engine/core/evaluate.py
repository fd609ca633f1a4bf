"""`evaluate`: score a Hugging Face model on prompt files, without Ray and without a trainer."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from relax_engine.access.policy import install, new_policy
from relax_engine.config import RunConfig
from relax_engine.errors import ConfigError
from relax_engine.rollout.data_source import DataSettings
from relax_engine.rollout.evaluation import evaluate_dataset
from relax_engine.rollout.generate import Generator
from relax_engine.rollout.own_generation import evaluation_generation
from relax_engine.rollout.pool import EnginePool
from relax_engine.rollout.sampling import SamplingSettings
from relax_engine.rollout.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Scores of one model on one data set.

    Attributes:
        dataset: Name given in `--eval-prompt-data`.
        prompts: Prompts scored.
        samples_per_prompt: Sampled responses per prompt.
        temperature: Of the sampled responses.
        accuracy: Mean reward of the sampled responses.
        greedy_accuracy: Mean reward of one greedy response per prompt.
        pass_at_k: Share of prompts with a sampled reward of 1, k = `samples_per_prompt`.
        truncated_ratio: Share of sampled responses cut at the length limit.
        response_length: Mean length of sampled responses, in tokens.
        seconds: Duration of both passes.
        prompt_scores: Mean reward of the sampled responses to each prompt, in the order of the file.
    """

    dataset: str
    prompts: int
    samples_per_prompt: int
    temperature: float
    accuracy: float
    greedy_accuracy: float
    pass_at_k: float
    truncated_ratio: float
    response_length: float
    seconds: float
    prompt_scores: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def evaluate(config: RunConfig, *, limit: int | None = None) -> list[EvalResult]:
    """Score `--hf-checkpoint` on every set of `--eval-prompt-data`, sampled and greedy.

    `limit` takes only the first so many prompts of each set.

    Raises:
        ConfigError: no data set was named.
        RelaxError: the engine, a prompt or a reward failed.
    """
    if not config.flat.eval_prompt_data:
        raise ConfigError("nothing to evaluate on: give --eval-prompt-data NAME PATH")
    install(new_policy(config.flat))
    with ThreadPoolExecutor(1, thread_name_prefix="evaluate") as executor:
        return executor.submit(asyncio.run, _evaluate(config, limit)).result()


async def _evaluate(config: RunConfig, limit: int | None) -> list[EvalResult]:
    from relax_engine.backends.engines.starting import EngineStart
    from relax_engine.rewards.executor import RewardExecutor
    from relax_engine.rewards.settings import RewardSettings

    args = config.flat
    tokenizer = load_tokenizer(args.hf_checkpoint)
    engine = await asyncio.to_thread(EngineStart.from_config(args).launch, "127.0.0.1")
    sampled = SamplingSettings.for_evaluation(args)
    greedy = replace(sampled, temperature=0.0)
    results = []
    pool = EnginePool([engine.url], timeout_s=args.rollout_http_timeout)
    try:
        with RewardExecutor(RewardSettings.from_config(args), args) as rewards:
            async with pool:
                for name, paths in args.eval_prompt_data.items():
                    data = DataSettings.from_config(args, prompt_data=paths)
                    started = time.time()
                    runs = []
                    for sampling, count in ((sampled, args.n_samples_per_eval_prompt), (greedy, 1)):
                        async with evaluation_generation(args, tokenizer, sampling, version=lambda: 0) as custom:
                            generator = Generator(pool, sampling, tokenizer=tokenizer, custom=custom, evaluation=True)
                            runs.append(
                                await evaluate_dataset(
                                    generator.generate,
                                    data,
                                    rewards,
                                    tokenizer,
                                    samples_per_prompt=count,
                                    reward_key=args.reward_key,
                                    limit=limit,
                                )
                            )
                    results.append(
                        EvalResult(
                            dataset=name,
                            prompts=len(runs[0].groups),
                            samples_per_prompt=args.n_samples_per_eval_prompt,
                            temperature=sampled.temperature,
                            accuracy=runs[0].mean_reward,
                            greedy_accuracy=runs[1].mean_reward,
                            pass_at_k=float((runs[0].rewards == 1).any(axis=1).mean()),
                            truncated_ratio=runs[0].truncated_ratio,
                            response_length=float(runs[0].lengths.mean()),
                            seconds=round(time.time() - started, 3),
                            prompt_scores=tuple(runs[0].rewards.mean(axis=1).tolist()),
                        )
                    )
    finally:
        await asyncio.to_thread(engine.close)
    return results
