"""The supervised producer: prompts with answers into the stream, for `--loss-type sft`, `dpo` and `seq_cls`."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from ray import serve

from relax_engine.checkpoint.hf_reader import read_config
from relax_engine.components.mode import partition_number
from relax_engine.components.role import Role, RoleContext, ingress
from relax_engine.multimodal.media import TRAIN_INPUTS
from relax_engine.multimodal.model import family_of
from relax_engine.rollout.class_labels import class_names, class_targets
from relax_engine.rollout.data_source import DataSettings, PromptDataSource
from relax_engine.rollout.prompts import PromptDataError
from relax_engine.rollout.tokenizer import load_tokenizer
from relax_engine.stream.columns import Column, ColumnBatch


class Sft(Role):
    """Writes partitions `sft_<step>` of `global_batch_size` examples each.

    An example is a prompt and its answer (`--label-key`); the loss covers the answer and the end
    token. For DPO it is a pair of rows: with the better answer, and with the worse one
    (`--rejected-key`). For classification its answer is the end token alone, which stands for the
    state at the end of the prompt. The stream's row budget bounds how far it runs ahead.
    """

    role: ClassVar[str] = "sft"

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)

    async def setup(self) -> None:
        """Read the data."""
        await asyncio.to_thread(self._setup)

    def _setup(self) -> None:
        args = self.args
        self.tokenizer = load_tokenizer(args.hf_checkpoint)
        position = self.context.run_state.get("data_position")
        if self.context.restarts:
            left = self.stream.withdraw()
            if left.sealed is not None:
                self.step, position = partition_number(left.sealed) + 1, left.meta["data_position"]
        keys = [args.label_key, args.rejected_key] if args.loss_type == "dpo" else [args.label_key]
        settings = DataSettings.from_config(args)
        # One source for each answer, in step.
        self.sources = [
            PromptDataSource(dataclasses.replace(settings, label_key=key), self.tokenizer, samples_per_group=1)
            for key in keys
        ]
        self._media = family_of(args.hf_checkpoint) is not None
        if position:
            self.sources[0].restore(position)
            for source in self.sources[1:]:
                source.restore({**position, "fingerprint": source.fingerprint})

    async def run(self) -> dict[str, Any]:
        """Produce all partitions."""
        for step in range(self.step, self.context.num_steps):
            if self.stopping:
                break
            self.step = step
            batch = await asyncio.to_thread(self._next_batch)
            partition = f"sft_{step}"
            # The partition is the token: a restarted producer makes the same batch again, and it is stored once.
            await asyncio.to_thread(
                self.stream.put, partition, batch, token=partition, deadline_s=self.args.wait_timeout
            )
            meta = {"data_position": self.sources[0].position.to_dict(), "metrics": {}}
            await asyncio.to_thread(self.stream.seal, partition, meta=meta)
        return self.outcome()

    async def close(self) -> None:
        """End what prepares prompts."""
        for source in self.sources:
            source.close()

    def _next_batch(self) -> ColumnBatch:
        return self._next_classes() if self.args.loss_type == "seq_cls" else self._next_answers()

    def _next_classes(self) -> ColumnBatch:
        """Prompts with the targets of their classes, float32 `[1, classes]` per row."""
        names = class_names(read_config(Path(self.args.hf_checkpoint)))
        multi_label = self.args.problem_type == "multi_label_classification"
        samples = [sample for (sample,) in self.sources[0].get_groups(self.args.global_batch_size)]
        targets = [
            class_targets(sample.label or "", names, multi_label=multi_label, where=f"example {sample.index}")
            for sample in samples
        ]
        return ColumnBatch(
            {
                "tokens": Column.ragged([[*s.tokens, self.tokenizer.eos_token_id] for s in samples], np.int32),
                "response_lengths": Column.fixed(np.ones(len(samples)), np.int32),
                "loss_masks": Column.ragged([[1]] * len(samples), np.uint8),
                "sample_indices": Column.fixed([s.index for s in samples], np.int64),
                "class_targets": Column.ragged([np.array([row]) for row in targets], np.float32),
            }
        )

    def _next_answers(self) -> ColumnBatch:
        """Prompts with one answer, or with two."""
        end = self.tokenizer.eos_token_id
        examples = zip(*(source.get_groups(self.args.global_batch_size) for source in self.sources), strict=True)
        tokens, lengths, numbers, media = [], [], [], []
        for answers in examples:
            for source, (sample,) in zip(self.sources, answers, strict=True):
                if not sample.label:
                    raise PromptDataError(
                        f"example {sample.index} has no answer in column {source.settings.label_key!r}"
                    )
                answer = [*self.tokenizer.encode(sample.label, add_special_tokens=False), end]
                tokens.append([*sample.tokens, *answer])
                lengths.append(len(answer))
                numbers.append(sample.index)
                media.append(sample.multimodal_train_inputs)
        columns = {
            "tokens": Column.ragged(tokens, np.int32),
            "response_lengths": Column.fixed(lengths, np.int32),
            "loss_masks": Column.ragged([np.ones(length, np.uint8) for length in lengths], np.uint8),
            "sample_indices": Column.fixed(numbers, np.int64),
        }
        if self._media:
            columns[TRAIN_INPUTS] = Column.objects(media)
        if len(self.sources) > 1:
            columns["group_index"] = Column.fixed(numbers, np.int64)
        return ColumnBatch(columns)


SftDeployment = serve.deployment(serve.ingress(ingress(Sft))(Sft))
