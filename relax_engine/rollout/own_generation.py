"""Which generation of its own a run has in place of engine requests: a user's function, agents, or none."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from relax_engine.rollout.agents.rollout import AgentRollout, AgentSettings
from relax_engine.rollout.custom_generate import custom_generate
from relax_engine.rollout.generate import OwnGeneration
from relax_engine.rollout.sampling import SamplingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@contextlib.asynccontextmanager
async def evaluation_generation(
    args: Any, tokenizer: PreTrainedTokenizerBase, sampling: SamplingSettings, *, version: Callable[[], int]
) -> AsyncIterator[OwnGeneration | None]:
    """The generation of one evaluation, while the block lasts; `version` says which weights the engines hold."""
    if args.use_agentic_rollout:
        async with AgentRollout(AgentSettings.from_config(args, tokenizer, sampling, evaluation=True)) as agents:
            yield agents
    else:
        yield custom_generate(args, version=version, evaluation=True)
