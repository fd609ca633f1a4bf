"""The supervised producer: prompts with answers into the stream, for `--loss-type sft`."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import numpy as np
from ray import serve

from relax_engine.components.role import Role, RoleContext, ingress
from relax_engine.rollout.data_source import DataSettings, PromptDataSource
from relax_engine.rollout.prompts import PromptDataError
from relax_engine.rollout.tokenizer import load_tokenizer
from relax_engine.stream.columns import Column, ColumnBatch


class Sft(Role):
    """Writes partitions `sft_<step>` of `global_batch_size` examples each.

    An example is a prompt and its answer (`--label-key`); the loss covers the answer and the end
    token. The stream's row budget bounds how far it runs ahead.
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
        if args.label_key is None:
            raise PromptDataError("--loss-type sft needs --label-key: the column with the answer to each prompt")
        self.data = PromptDataSource(DataSettings.from_config(args), self.tokenizer, samples_per_group=1)
        if self.context.run_state.get("data_position"):
            self.data.restore(self.context.run_state["data_position"])

    async def run(self) -> dict[str, Any]:
        """Produce all partitions."""
        for step in range(self.context.start_step, self.context.num_steps):
            if self.stopping:
                break
            self.step = step
            batch = await asyncio.to_thread(self._next_batch)
            partition = f"sft_{step}"
            await asyncio.to_thread(self.stream.put, partition, batch, deadline_s=self.args.wait_timeout)
            meta = {"data_position": self.data.position.to_dict(), "metrics": {}}
            await asyncio.to_thread(self.stream.seal, partition, meta=meta)
        return self.outcome()

    async def close(self) -> None:
        """Nothing to release."""

    def _next_batch(self) -> ColumnBatch:
        end = self.tokenizer.eos_token_id
        tokens, lengths = [], []
        for (sample,) in self.data.get_groups(self.args.global_batch_size):
            if not sample.label:
                raise PromptDataError(f"example {sample.index} has no answer in column {self.args.label_key!r}")
            answer = [*self.tokenizer.encode(sample.label, add_special_tokens=False), end]
            tokens.append([*sample.tokens, *answer])
            lengths.append(len(answer))
        return ColumnBatch(
            {
                "tokens": Column.ragged(tokens, np.int32),
                "response_lengths": Column.fixed(lengths, np.int32),
                "loss_masks": Column.ragged([np.ones(length, np.uint8) for length in lengths], np.uint8),
            }
        )


SftDeployment = serve.deployment(serve.ingress(ingress(Sft))(Sft))
