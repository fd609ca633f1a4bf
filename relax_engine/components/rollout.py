"""The rollout role: prompts in, scored samples out, as fast as admission allows.

Owns the engines, the data source and the rewards, and tells the flow of groups (`rollout.flow`) what the stream and
the actor say. Placed groups are written by `partitions.py`, and evaluations run in `evaluator.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from relax_engine.components.evaluator import Evaluator
from relax_engine.components.mode import evaluation_is_due, partition_number
from relax_engine.components.partitions import PartitionWriter
from relax_engine.components.role import Role, RoleContext
from relax_engine.components.rollout_engines import RolloutEngines
from relax_engine.config.flat import FlatView
from relax_engine.config.roles import generates_ahead
from relax_engine.core.address import api_address
from relax_engine.elastic.api import Elasticity
from relax_engine.elastic.failures import StartingError
from relax_engine.observe.rollouts.media import DIRECTORY as MEDIA
from relax_engine.observe.rollouts.media import MediaStore
from relax_engine.observe.rollouts.recorder import Recorder
from relax_engine.rewards.executor import RewardExecutor
from relax_engine.rewards.settings import RewardSettings
from relax_engine.rollout.agents.credit import with_credit
from relax_engine.rollout.agents.rollout import AgentRollout, AgentSettings
from relax_engine.rollout.buffer import GroupBuffer, unpack_groups
from relax_engine.rollout.custom_generate import custom_generate
from relax_engine.rollout.custom_rollout import CustomRollout, RolloutFunction
from relax_engine.rollout.data_source import DataSettings, PromptDataSource
from relax_engine.rollout.flow import GroupFlow
from relax_engine.rollout.flow_settings import FlowHooks, FlowSettings
from relax_engine.rollout.generate import Generator
from relax_engine.rollout.hooks import RolloutHooks
from relax_engine.rollout.prefetch import PromptPrefetcher
from relax_engine.rollout.recorded_rollout import RecordedRollout
from relax_engine.rollout.sampling import SamplingSettings
from relax_engine.rollout.tokenizer import load_tokenizer
from relax_engine.types import Sample, SampleGroup
from relax_engine.utils.hooks import load_function


class Rollout(Role):
    """Generates partitions `start_step .. num_steps - 1`.

    On shared devices rollout and training take turns: the groups of a partition start when the one before it was
    trained, and between partitions the engines give their cache memory back. Otherwise groups start one by one as
    slots free up, and generation of later partitions goes on while earlier ones finish (`generates_ahead`).
    """

    role: ClassVar[str] = "rollout"

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        self.colocate = self.config.mode == "colocate"
        self.in_turns = not generates_ahead(self.config)
        self.tolerant: bool = self.args.use_fault_tolerance
        self._version_changed = asyncio.Condition()
        self._closing = contextlib.AsyncExitStack()

    async def setup(self) -> None:
        """Start the engines, and meanwhile read the prompts and start the reward workers."""
        self.engines = RolloutEngines(self.config, self.context.slots, self.emit)
        self._closing.push_async_callback(self.engines.close)
        starting = asyncio.create_task(self.engines.start(lambda url: self.flow.cut_from(url)))
        await asyncio.to_thread(self._prepare)
        await starting
        self.pool = self.engines.pool
        self.agents: AgentRollout | None = None
        if self.args.use_agentic_rollout:
            settings = AgentSettings.from_config(self.args, self.tokenizer, SamplingSettings.from_config(self.args))
            self.agents = await self._closing.enter_async_context(AgentRollout(settings))
        self.flow = self._make_flow()
        self._closing.push_async_callback(self.flow.close)
        self.partitions = PartitionWriter(
            self.config,
            self.stream,
            self.flow,
            self.prompts,
            self.hooks,
            self._hand_over,
            self._make_recorder(),
            MediaStore(Path(self.context.run_dir, "rollouts", MEDIA), self.args.record_media_mb * 1_000_000),
            self.agents,
        )
        self.evaluator = Evaluator(self, self.pool, self.rewards, self.tokenizer, self.hooks)

    def _make_recorder(self) -> Recorder | None:
        """None unless asked for. What a predecessor in this run recorded stays, as it does in the stream."""
        if not self.args.record_rollouts:
            return None
        directory = Path(self.context.run_dir, "rollouts", "samples")
        recorder = Recorder(directory, rewind_to=None if self.context.restarts else self.context.start_step)
        self._closing.push_async_callback(asyncio.to_thread, recorder.close)
        return recorder

    def _make_flow(self) -> GroupFlow | CustomRollout | RecordedRollout:
        args = self.args
        if args.load_debug_rollout_data is not None:
            return RecordedRollout(args.load_debug_rollout_data, args.rollout_batch_size, self._admit)
        hooks = FlowHooks(self._admit, self.prompts.group, self._score, self._give_up, self.record_phase)
        if args.rollout_function_path is not None:
            function = RolloutFunction(args.rollout_function_path, self.pool, args, self.stream)
            return CustomRollout(function, hooks, self.buffer)
        generator = Generator(
            self.pool,
            SamplingSettings.from_config(args),
            tokenizer=self.tokenizer,
            custom=self.agents or custom_generate(args, version=lambda: self.version),
            max_aborted=args.partial_rollout_max_aborted_count,
            on_engine=self.stream.assign,
        )
        return GroupFlow(
            FlowSettings.from_config(self.config),
            hooks,
            generator,
            self.buffer,
            first_partition=self.first,
            placed=self.placed,
            sample_filter=with_credit(
                _hook(args.agentic_custom_advantage_path), _hook(args.dynamic_sampling_filter_path)
            ),
            args=args,
        )

    def _prepare(self) -> None:
        args = self.args
        self.hooks = RolloutHooks.from_config(args)
        self.rewards = self._closing.enter_context(RewardExecutor(RewardSettings.from_config(args), _judged(args)))
        self.tokenizer = load_tokenizer(args.hf_checkpoint)
        data = PromptDataSource(DataSettings.from_config(args), self.tokenizer, args.n_samples_per_prompt)
        self.prompts = self._closing.enter_context(PromptPrefetcher(data, args.prefetch_max_cached))
        self.buffer = GroupBuffer(_hook(args.buffer_filter_path), args)
        position = dict(self.context.run_state.get("data_position") or {})
        self.first, self.placed = self.context.start_step, 0
        left = self.stream.withdraw() if self.context.restarts else None
        if left is not None and left.sealed is not None:
            self.first = partition_number(left.sealed) + 1
            position = dict(left.meta["data_position"])
        self.waiting = data.restored(unpack_groups(position.pop("groups", [])))
        self.next_group, self.pending = position.get("group_index", 0), position.get("pending", [])
        if position:
            data.restore(position)
        if left is not None:
            # What is in the stream stays; the gate knows which groups are neither there nor ended.
            self.next_group, self.pending = left.next_group, left.pending
            self.placed = len(left.accepted.get(f"train_{self.first}", ()))

    # -- control -----------------------------------------------------------------------------

    async def engine_urls(self) -> list[str]:
        """Addresses of the engines."""
        return list(self.pool.engines)

    async def engine_states(self) -> list[dict[str, Any]]:
        """Each engine: address, origin, samples asked for and not answered, and why it gets no requests, if so."""
        return [
            {
                "url": url,
                "origin": engine.origin,
                "outstanding": engine.outstanding,
                "version": self.version,
                "out_of_service": "leaves" if engine.draining else engine.quarantined,
            }
            for url, engine in self.pool.engines.items()
        ]

    async def prepare_for_weights(self) -> list[str]:
        """The actor is about to send weights; returns the engines that they are for.

        Evaluations of the present ones end first, unless they wait for an engine that waits for weights, and with
        partial rollout the requests in flight are cut off. Engines that gave their memory back take it again.
        """
        await self.pool.resume_memory()
        if self.pool.usable():
            await self.evaluator.finish_active()
        await self.flow.cut_for_weights()
        return self.engines.weights_begin()

    async def take_memory_back(self) -> None:
        """No weights come for the engines this time."""
        await self.pool.resume_memory()

    async def weights_committed(self, version: int, quarantined: dict[str, str], committed: Sequence[str]) -> None:
        """The committed engines hold weights of `version`; the quarantined ones get no more traffic."""
        await self.engines.weights_end(version, quarantined, committed)
        await self.flow.weights_arrived(version)
        async with self._version_changed:
            self._version_changed.notify_all()

    async def _score(self, samples: Sequence[Sample]) -> None:
        """Score samples, unless that is left to the processing of whole groups."""
        if not self.args.defer_reward_to_post_process:
            await self.rewards.score(samples)

    async def wait_for_version(self, version: int) -> None:
        """Return when the engines hold weights of `version` or later; at once where they never change."""
        if self.args.debug_rollout_only or not self.pool.engines:
            return
        async with self._version_changed:
            await asyncio.wait_for(
                self._version_changed.wait_for(lambda: self.version >= version), self.args.wait_timeout
            )

    @property
    def version(self) -> int:
        """Of the weights that engines hold; -1 before the first."""
        return self.engines.version

    @property
    def elasticity(self) -> Elasticity:
        """For the scaling API.

        Raises:
            StartingError: the engines are not there yet.
        """
        if not hasattr(self, "pool"):
            raise StartingError("the run's engines are being started; try again")
        return self.engines.elasticity

    def processes(self) -> dict[str, int]:
        """Process ids of the engines."""
        return self.engines.processes() if hasattr(self, "engines") else {}

    # -- the loop ----------------------------------------------------------------------------

    async def run(self) -> dict[str, Any]:
        """Produce all partitions; raises the first error of any request, reward, hook or write."""
        first, last = self.first, self.context.num_steps
        await self.wait_for_version(self.context.start_step)
        for step in range(self.context.start_step, first):
            # What a predecessor had begun to evaluate when it died; what it had finished is not done again.
            await self.evaluator.start_if_due(step, wait=self.in_turns)
        if self.in_turns and first > self.context.start_step:
            await self._hand_over()  # the actor is training what is sealed
        await self.flow.restore(self.next_group, self.pending, self.waiting)
        self.flow.start(last - first)
        for rollout_id in range(first, last):
            if self.stopping:
                break
            self.step = rollout_id
            if rollout_id > self.context.start_step and self.in_turns:
                trained = f"train_{rollout_id - 1}"
                await asyncio.to_thread(
                    self.stream.wait_partition, trained, "dropped", deadline_s=self.args.wait_timeout
                )
            await self.evaluator.start_if_due(rollout_id, wait=self.in_turns)
            written = await self.partitions.write(rollout_id)
            self.emit("rollout", rollout_id=rollout_id, **written)
            if rollout_id + 1 < last:
                await self._prelaunch()
            if self.args.debug_rollout_only:
                await asyncio.to_thread(self.stream.finish_step, f"train_{rollout_id}")
        await self.flow.close()
        await self.evaluator.finish()
        if not self.stopping:
            await self._see_the_end()
        return self.outcome()

    async def _see_the_end(self) -> None:
        """Evaluate the final weights where asked for.

        Where failures are tolerated, wait for them in any case: the engines are needed until the actor has sent them,
        and only a role that runs is started again.
        """
        last = self.context.num_steps
        if self.tolerant or evaluation_is_due(self.config, last):
            while self.pool.engines and not self.args.debug_rollout_only and self.version < last:
                await self.wait_for_version(self.version + 1)  # each with a deadline of its own
        await self.evaluator.start_if_due(last, wait=True)

    async def close(self) -> None:
        """End whatever `setup` and `run` started, the last first."""
        await self._closing.aclose()

    async def _hand_over(self) -> None:
        """In colocate mode the devices are the actor's next."""
        shared = self.colocate and not self.args.debug_rollout_only
        if shared and self.args.offload_rollout and self.pool.engines:
            await self.pool.release_memory()

    async def _prelaunch(self) -> None:
        """Start the agents of the next rollout, while this one is trained."""
        if self.agents is not None and self.args.agentic_prelaunch and self.colocate:
            assert isinstance(self.flow, GroupFlow)
            await self.agents.prelaunch(await self.flow.upcoming())

    # -- what the flow asks for --------------------------------------------------------------

    async def _admit(self, groups: int) -> list[int]:
        return await self.stream.aadmit(groups, deadline_s=self.args.wait_timeout)

    async def _give_up(self, groups: Sequence[SampleGroup]) -> None:
        samples = sum(map(len, groups))
        numbers = [group[0].group_index for group in groups]
        await asyncio.to_thread(self.stream.record_filtered, samples, numbers)


def _judged(args: FlatView) -> FlatView:
    """With the address of the judge, where the run serves it."""
    if args.genrm_model_path is None:
        return args
    return FlatView(vars(args) | {"genrm_url": f"{api_address().base_url}/genrm/generate"})


def _hook(path: str | None) -> Any:
    return None if path is None else load_function(path)
