"""`--custom-generate-function-path`: the user's generation of one response, and what it must leave behind.

async def generate(args, sample, sampling_params[, evaluation]) -> Sample
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from relax_engine.access.policy import revealed_engine_key
from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.types import EngineCallError, EngineUnreachableError
from relax_engine.config.flat import FlatView
from relax_engine.rollout import current
from relax_engine.rollout.current import Call
from relax_engine.rollout.partial import is_finished
from relax_engine.rollout.pool import EnginePool, RolloutError, asked_of
from relax_engine.rollout.routing import Affinity
from relax_engine.rollout.sampling import SamplingSettings
from relax_engine.types import Sample, SampleGroup, SampleStatus, WeightVersionSpan
from relax_engine.utils.hooks import load_function

_PER_TOKEN = ("loss_mask", "rollout_log_probs")


class CustomGenerate:
    """Calls the function, one call per sample, all at once.

    `args` are the run's, and `args.sglang_router_ip` and `args.sglang_router_port` name the engine chosen for the
    sample. A call that fails while its engine is dead is made again on another one, from the sample as it was.
    A sample's own `generate_function_path` wins.
    """

    def __init__(self, path: str, args: FlatView, *, version: Callable[[], int], evaluation: bool) -> None:
        self.path, self.args, self.evaluation = path, args, evaluation
        self._version = version

    async def generate(
        self,
        groups: Sequence[SampleGroup],
        sampling: SamplingSettings,
        pool: EnginePool,
        announce: Callable[[str], None],
    ) -> None:
        """Fill all unfinished samples of the groups, in place.

        Raises:
            RolloutError: the function failed, or broke its contract; names it and the sample.
        """
        async with asyncio.TaskGroup() as tasks:
            for sample in (sample for group in groups for sample in group if not is_finished(sample)):
                tasks.create_task(self._one(sample, sampling, pool, announce))

    async def cut(self) -> None:
        """Nothing to do: the function sees its engine request end."""

    async def _one(
        self, sample: Sample, sampling: SamplingSettings, pool: EnginePool, announce: Callable[[str], None]
    ) -> None:
        path = sample.generate_function_path or self.path
        function = load_function(path)
        params = sampling.request(sample.index, sample.prompt_length, generated=sample.response_length)

        async def call(client: EngineClient) -> Any:
            inputs = sample.multimodal_train_inputs  # large, and never changed in place
            given = copy.deepcopy(sample, {id(inputs): inputs})
            try:
                extra = {"evaluation": self.evaluation} if _takes_evaluation(function) else {}
                with current.set_call(Call(self._args(client.url), given, dict(params), client)):
                    return await function(self._args(client.url), given, dict(params), **extra)
            except EngineCallError:
                raise
            except Exception as error:
                try:
                    await client.health()
                except EngineCallError as dead:
                    raise EngineUnreachableError(f"{path} failed with {error!r}, and {dead}") from error
                raise RolloutError(
                    f"{path} failed on sample {sample.index} of group {sample.group_index}: "
                    f"{type(error).__name__}: {error}"
                ) from error

        version = self._version()
        result = await pool.run(
            call,
            samples=1,
            what=f"{path} on sample {sample.index}",
            on_engine=asked_of([sample], announce),
            affinity=Affinity(f"group {sample.group_index}", sample.tokens),
        )
        if isinstance(result, list) and len(result) == 1:
            result = result[0]
        check_generated(path, sample, result)
        for item in dataclasses.fields(Sample):
            if item.name != "engine":
                setattr(sample, item.name, getattr(result, item.name))
        complete_generated(sample, version)

    def _args(self, url: str) -> FlatView:
        address = urlsplit(url)
        chosen = {"sglang_router_ip": address.hostname, "sglang_router_port": address.port}
        return FlatView(vars(self.args) | chosen | {"sglang_api_key": revealed_engine_key()})


def complete_generated(sample: Sample, version: int) -> None:
    """Fill what the function may leave out: a full loss mask, and weight versions.

    The weights may have changed meanwhile; `version`, those at its start, are the safe ones for the staleness bound.
    """
    if sample.loss_mask is None:
        sample.loss_mask = [1] * sample.response_length
    if not sample.weight_versions and sample.response_length:
        sample.weight_versions = [WeightVersionSpan(version, 0, sample.response_length)]


def custom_generate(args: FlatView, *, version: Callable[[], int], evaluation: bool = False) -> CustomGenerate | None:
    """The generation that `--custom-generate-function-path` names, None without it.

    `version` says which weights the engines hold.
    """
    path = args.custom_generate_function_path
    return None if path is None else CustomGenerate(path, args, version=version, evaluation=evaluation)


def check_generated(path: str, sample: Sample, result: Any) -> None:
    """Check what a generation function returned for `sample`.

    Raises:
        RolloutError: names function, sample, field and value.
    """
    where = f"{path} on sample {sample.index} of group {sample.group_index}"
    if not isinstance(result, Sample):
        raise RolloutError(f"{where} returned {type(result).__name__}; return one Sample")
    if (result.index, result.group_index) != (sample.index, sample.group_index):
        raise RolloutError(f"{where} returned sample {result.index} of group {result.group_index}")
    if result.status is SampleStatus.PENDING:
        raise RolloutError(f"{where} left status at pending; set it, or call sample.update_from_meta_info")
    if not 0 <= result.response_length < len(result.tokens):
        raise RolloutError(
            f"{where}: response_length is {result.response_length} of {len(result.tokens)} tokens; tokens are the "
            "prompt's and the response's"
        )
    if result.rollout_log_probs is None:
        raise RolloutError(f"{where} left no rollout_log_probs; ask the engine with return_logprob")
    for name in _PER_TOKEN:
        values = getattr(result, name)
        if values is not None and len(values) != result.response_length:
            raise RolloutError(
                f"{where}: {name} has {len(values)} entries for a response of {result.response_length} tokens"
            )


def _takes_evaluation(function: Callable[..., Any]) -> bool:
    return "evaluation" in inspect.signature(function).parameters
