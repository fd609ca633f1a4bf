"""The engines of the judge: the same life as the rollout's, with weights that never change.

What lives here: the difference. What does not: what the death or the arrival of an engine means (`rollout_engines.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relax_engine.components.engine_group import EngineGroup
from relax_engine.components.rollout_engines import Emit, RolloutEngines
from relax_engine.config import RunConfig
from relax_engine.core.placement import Slot

_CONTEXT = 8192


class JudgeEngines(RolloutEngines):
    """Engines of `--genrm-model-path`, on devices of their own in every mode.

    An engine that comes, or takes the place of a dead one, holds the weights from its start: it is released at once,
    and the controller, which would have the actor send it the policy, hears nothing of it.
    """

    def __init__(self, config: RunConfig, slots: Sequence[Slot], emit: Emit) -> None:
        settings = dict(config.reward.genrm_engine_config)
        context = settings.pop("max_context_len", _CONTEXT)
        group = EngineGroup(
            config, slots, model_path=config.reward.genrm_model_path, context_length=context, extra_args=settings
        )
        super().__init__(config, slots, self._hear, group=group)
        self._tell = emit
        self.version, self.refusal = 0, None

    async def start_all(self) -> None:
        """Start the initial engines."""
        await self.start(_nothing_to_cut)

    def _hear(self, kind: str, **values: Any) -> None:
        if kind == "engine_started":
            self._background(self.pool.release([values["engine"]]))
        else:
            self._tell(kind, **values)


async def _nothing_to_cut(_: str) -> None:
    """A judgement is short: it runs to its end, or begins again elsewhere."""
