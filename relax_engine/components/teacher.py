"""The teacher of on-policy distillation: adds its log-probs to every row as soon as it is in the stream."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from ray import serve

from relax_engine.components.engine_group import EngineGroup
from relax_engine.components.mode import forward_budget, input_columns, rows_per_part
from relax_engine.components.role import Role, RoleContext, ingress
from relax_engine.components.teacher_scorers import EngineTeachers, model_columns
from relax_engine.components.train_group import TrainGroup, load_weights
from relax_engine.rollout.teachers import teacher_urls
from relax_engine.stream.columns import ColumnBatch

_TASK = "teacher_log_probs"


class Teacher(Role):
    """Asks engines (given by URL, or started here), or a model of the training backend on this role's devices.

    Its weights never change, so rows are scored while the student trains on others.
    """

    role: ClassVar[str] = "teacher"

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        self.engines: EngineGroup | None = None
        self.teachers: EngineTeachers | None = None
        self.group: TrainGroup | None = None

    async def setup(self) -> None:
        """Start the teacher's engines or ranks, as far as they are this run's."""
        args = self.args
        if args.opd_type == "megatron":
            self.group = await asyncio.to_thread(self._load_model)
            return
        urls = teacher_urls(args)
        if args.teacher_hf_checkpoint is not None:
            self.engines = EngineGroup(self.config, self.context.slots, model_path=args.teacher_hf_checkpoint)
            urls = [await self.engines.start(args.rollout_engine_init_timeout)]
        self.teachers = EngineTeachers(urls, timeout_s=args.opd_teacher_timeout_s, top_k=args.opd_log_prob_top_k)

    def _load_model(self) -> TrainGroup:
        args = self.args
        config = self.config.replace(**args.ref_actor_config) if args.ref_actor_config else self.config
        group = TrainGroup(config, self.context.slots, role=self.role, trainable=False, timeout_s=args.wait_timeout)
        load_weights(group, args.opd_teacher_load)
        return group

    async def run(self) -> dict[str, Any]:
        """Process all partitions."""
        await self.work_through(_TASK, self._part)
        return self.outcome()

    async def close(self) -> None:
        """End what `setup` started."""
        if self.teachers is not None:
            await self.teachers.close()
        if self.engines is not None:
            await self.engines.close()
        if self.group is not None:
            await asyncio.to_thread(self.group.close)

    async def _part(self, partition: str, sequence: int) -> bool:
        """Score one delivery; False at the end of the partition."""
        columns = [*input_columns(self.config), *(["teacher"] if self.args.opd_teacher_routes else [])]
        delivery = await asyncio.to_thread(
            self.stream.take,
            _TASK,
            partition,
            sequence,
            columns,
            rows_per_part(self.config),
            deadline_s=self.args.wait_timeout,
        )
        if delivery.end:
            return False
        batch = await asyncio.to_thread(self.stream.fetch, delivery)
        with self.phase(_TASK):
            added = await self._score(batch)
        await asyncio.to_thread(self.stream.put_columns, partition, delivery.rows, added, task=_TASK, seq=sequence)
        return True

    async def _score(self, batch: ColumnBatch) -> ColumnBatch:
        if self.group is None:
            assert self.teachers is not None
            return await self.teachers.score(batch)
        columns = await asyncio.to_thread(
            model_columns,
            self.group,
            batch,
            top_k=self.args.opd_log_prob_top_k,
            max_tokens=forward_budget(self.group.config),
        )
        return ColumnBatch(dict(columns))


TeacherDeployment = serve.deployment(serve.ingress(ingress(Teacher))(Teacher))
