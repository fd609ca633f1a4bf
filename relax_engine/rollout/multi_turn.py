"""`--custom-generate-function-path relax_engine.rollout.multi_turn.generate`: turns of the model and an environment.

The environment is that of the module `args.rollout_interaction_env_path`, for at most `args.max_turns` turns; both are
keys of `--custom-config-path`. What lives here: the loop, and what of it is trained. What does not: environments
(`environment`, `tools`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from relax_engine.backends.engines.client import EngineClient
from relax_engine.config.flat import FlatView
from relax_engine.multimodal.content import MediaError
from relax_engine.multimodal.media import MediaMismatchError
from relax_engine.rollout.conversation_media import ConversationMedia, flat_text, observed_media, run_processor
from relax_engine.rollout.environment import BaseInteractionEnv, StepResult, call, load_build_env, step_result
from relax_engine.rollout.environment_pool import EnvironmentLostError, pool_of
from relax_engine.rollout.frames import encode_frame, frame_text
from relax_engine.rollout.partial import join_experts
from relax_engine.rollout.pool import RolloutError
from relax_engine.rollout.sampling import sample_seed
from relax_engine.rollout.tokenizer import cached_tokenizer
from relax_engine.types import Sample, SampleStatus, WeightVersionSpan

if TYPE_CHECKING:
    from relax_engine.backends.engines.types import GenerateOutput

logger = logging.getLogger(__name__)

_ATTEMPTS = 3


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Generate all turns of one sample.

    A turn's tokens are trained (mask 1); those of an observation are not (mask 0, log-prob 0). Turns and observations
    together fit into `--rollout-max-context-len`, or without it into `--rollout-max-response-len`. The sample is
    COMPLETED when the environment is done or `max_turns` are over, TRUNCATED when a turn is cut off by its length or
    nothing more fits, ABORTED when its request was; it then begins again from the prompt. Media of observations
    (`multi_modal_data`) stand before their text, and become part of `multimodal_inputs` and `multimodal_train_inputs`.

    With `environment_processes: N` beside these keys, at most N environments are open at a time, each in a process of
    its own. One that hangs (`--wait-timeout`), dies or raises has the sample begin again, three times in all; then it
    is FAILED, and its group is left out.

    `sample.metadata["environment"]` has `turns`, `stop`, the `rewards` of the steps if they have any, and the keys of
    the last `info`.

    Raises:
        RolloutError: the settings are missing, or the environment breaks its contract.
    """
    path, most = getattr(args, "rollout_interaction_env_path", None), getattr(args, "max_turns", None)
    if not path or not isinstance(most, int) or most < 1:
        raise RolloutError(
            f"turns need rollout_interaction_env_path (is {path!r}) and max_turns of at least 1 (is {most!r}): "
            "set them under `custom` in the configuration, or in --custom-config-path"
        )
    processes = int(getattr(args, "environment_processes", 0))
    for attempt in range(_ATTEMPTS):
        _begin(sample)
        try:
            await _attempt(args, sample, sampling_params, path, most, processes)
            break
        except EnvironmentLostError as error:
            logger.warning("sample %d, attempt %d of %d: %s", sample.index, attempt + 1, _ATTEMPTS, error)
    else:
        _begin(sample)
        sample.status = SampleStatus.FAILED
    return sample


async def _attempt(args: Any, sample: Sample, params: dict[str, Any], path: str, most: int, processes: int) -> None:
    """All turns, once; in a process of its own if there are `processes`."""
    if processes:
        pool = pool_of(asyncio.get_running_loop(), processes, args.wait_timeout)
        env: BaseInteractionEnv = await pool.build(path, sample, _plain(args))
    else:
        env = load_build_env(path)(sample=sample, args=args)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    try:
        await call(env.reset, timeout_s=args.wait_timeout)
        async with EngineClient(url, timeout_s=args.rollout_http_timeout) as client:
            await _turns(args, sample, params, env, client, most)
    finally:
        await call(env.close, timeout_s=args.wait_timeout)


def _plain(args: Any) -> Any:
    """The arguments without the engines' key, which environments have no business with."""
    return FlatView({name: value for name, value in vars(args).items() if name != "sglang_api_key"})


async def _turns(
    args: Any, sample: Sample, params: dict[str, Any], env: BaseInteractionEnv, client: EngineClient, most: int
) -> None:
    tokenizer = cached_tokenizer(args.hf_checkpoint)
    context = args.rollout_max_context_len
    last = context if context is not None else len(sample.tokens) + params["max_new_tokens"]
    notes: dict[str, Any] = {}
    rewards: list[float] = []
    media = ConversationMedia.of(sample)
    for turn in range(most):
        asked = {
            **params,
            "max_new_tokens": min(params["max_new_tokens"], last - len(sample.tokens)),
            "sampling_seed": sample_seed(params["sampling_seed"], turn),
        }
        (output,) = await client.generate_batch(
            [sample.tokens], asked, media=[media.named], routed_experts=args.use_rollout_routing_replay
        )
        _append_turn(sample, output)
        reason = output.finish_reason["type"]
        notes = {"turns": turn + 1, "stop": reason}
        if reason != "stop":
            sample.status = SampleStatus.ABORTED if reason == "abort" else SampleStatus.TRUNCATED
            break
        result = await _step(env, output.text, sample, args.wait_timeout)
        rewards += [] if result.reward is None else [result.reward]
        notes = {**result.info, **notes, "stop": "done" if result.done else "max_turns"}
        sample.status = SampleStatus.COMPLETED
        if result.done or turn + 1 == most:
            break
        shown, more = await _encode(env, result, sample, media, args)
        if len(sample.tokens) + len(shown) >= last:
            sample.status, notes["stop"] = SampleStatus.TRUNCATED, "context"
            break
        media = more
        _append(sample, shown, [0.0] * len(shown), mask=0)
    if sample.status is not SampleStatus.ABORTED:
        media.give(sample)
    sample.response = str(tokenizer.decode(sample.rollout_tokens, skip_special_tokens=True))
    sample.metadata["environment"] = notes | ({"rewards": rewards} if rewards else {})


async def _step(env: BaseInteractionEnv, text: str, sample: Sample, timeout_s: float) -> StepResult:
    start = time.perf_counter()
    try:
        return step_result(await call(env.step, text, timeout_s=timeout_s))
    except TimeoutError as error:
        raise RolloutError(f"step of {type(env).__name__} took longer than {timeout_s} s (--wait-timeout)") from error
    finally:
        sample.non_generation_time += time.perf_counter() - start


async def _encode(
    env: BaseInteractionEnv, result: StepResult, sample: Sample, media: ConversationMedia, args: Any
) -> tuple[list[int], ConversationMedia]:
    """The tokens between a turn and the next: the rest of the turn's frame, the observation, the head of an answer; and
    the media so far, those of the observation included."""
    tokenizer = cached_tokenizer(args.hf_checkpoint)
    messages = env.format_observation(result.observation)
    messages = messages if isinstance(messages, list) else [messages]
    try:
        items = observed_media(result.observation)
        processor = await asyncio.to_thread(run_processor, args) if items else None
        if args.apply_chat_template:
            text = frame_text(tokenizer, messages, options=args.apply_chat_template_kwargs)
        else:
            text = flat_text(messages, processor)
        tokens = encode_frame(tokenizer, text, sample.tokens[-1])
        if processor is None:
            return tokens, media
        return await asyncio.to_thread(media.joined, tokens, items, processor)
    except (MediaError, MediaMismatchError) as error:
        raise RolloutError(f"the observation of {type(env).__name__} cannot be shown: {error}") from error


def _begin(sample: Sample) -> None:
    """Leave the prompt alone of a sample that was cut off."""
    sample.tokens = sample.tokens[: sample.prompt_length]
    sample.rollout_tokens, sample.loss_mask, sample.rollout_log_probs = [], [], []
    sample.response, sample.response_length, sample.weight_versions = "", 0, []


def _append_turn(sample: Sample, output: GenerateOutput) -> None:
    start = sample.response_length
    join_experts(sample, output)
    for span in output.weight_versions:
        sample.weight_versions.append(WeightVersionSpan(int(span.version), start + span.start, start + span.end))
    _append(sample, output.output_ids.tolist(), output.log_probs.tolist(), mask=1)


def _append(sample: Sample, tokens: list[int], log_probs: list[float], *, mask: int) -> None:
    sample.tokens = [*sample.tokens, *tokens]
    sample.rollout_tokens = [*sample.rollout_tokens, *tokens]
    sample.response_length += len(tokens)
    sample.loss_mask = [*(sample.loss_mask or []), *[mask] * len(tokens)]
    sample.rollout_log_probs = [*(sample.rollout_log_probs or []), *log_probs]
