"""The loop: look at the engines every few seconds, decide less often, and tell the rollout.

What lives here: the two rhythms, cooldown bookkeeping and the history. What does not: the rules (`rules.py`), and HTTP
(`rollout_api.py`, `service.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from relax_engine.elastic.autoscaler.config import AutoscalerConfig
from relax_engine.elastic.autoscaler.prometheus import EngineMetrics, MetricsTextError, parse_metrics
from relax_engine.elastic.autoscaler.rollout_api import RolloutApi, RolloutApiError
from relax_engine.elastic.autoscaler.rules import Action, Decision, conditions, decide
from relax_engine.elastic.autoscaler.window import Observation, Window

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One decision to act and what became of it. `at` is seconds since the epoch.

    `outcome`: requested (the rollout took the request), recommended (recommendation-only, or not enabled), refused.
    """

    at: float
    action: Action
    engines: int
    target: int
    reason: str
    outcome: str
    message: str = ""


class Autoscaler:
    """Watches one model of one run.

    Invariants: a request to the rollout is always within the bounds; two of them are never closer together than the
    cooldown of the later one. What the rollout refuses (409: another operation is under way) begins no cooldown; a call
    whose answer was lost does, because it may have had its effect.
    """

    def __init__(self, config: AutoscalerConfig, api: RolloutApi) -> None:
        self.config = config
        self.api = api
        self.enabled = config.enabled
        self.window = Window(config.memory, config.longest_gap)
        self.history: deque[HistoryEntry] = deque(maxlen=config.history)
        self.last: Decision | None = None
        self.error: str | None = None
        self._acted: float | None = None
        self._started = time.time()

    async def run(self) -> None:
        """Look and decide until cancelled; errors of the rollout or of engines are remembered and outlived."""
        decided = time.monotonic()
        while True:
            began = time.monotonic()
            await self.collect(began)
            if began - decided >= self.config.decide_interval:
                decided = began
                await self.act(time.monotonic())
            await asyncio.sleep(max(0.0, self.config.collect_interval - (time.monotonic() - began)))

    async def collect(self, now: float) -> None:
        """Add one observation to the window, unless the rollout does not say which engines there are."""
        try:
            fleet = await self.api.fleet(self.config.model_name)
        except RolloutApiError as error:
            self._failed(error)
            return
        self.error = None
        answers = await asyncio.gather(*(self._metrics_of(url) for url in fleet.serving))
        found = {url: metrics for url, metrics in zip(fleet.serving, answers, strict=True) if metrics is not None}
        self.window.add(
            Observation(
                at=now,
                metrics=found,
                silent=[url for url in fleet.serving if url not in found],
                engines=fleet.engines,
                initial=fleet.initial,
                changing=fleet.changing,
            )
        )

    async def _metrics_of(self, url: str) -> EngineMetrics | None:
        try:
            return parse_metrics(await self.api.metrics(url))
        except (RolloutApiError, MetricsTextError, ValueError) as error:
            self._failed(error)
            return None

    def _failed(self, error: Exception) -> None:
        if str(error) != self.error:
            logger.warning("autoscaler: %s", error)
        self.error = str(error)

    async def act(self, now: float) -> None:
        """Decide, and ask the rollout for what was decided where that is wanted."""
        decision = decide(self.window, self.config, now, self._acted)
        changed = self.last is None or (decision.action, decision.target) != (self.last.action, self.last.target)
        self.last = decision
        if decision.action is Action.HOLD:
            return
        if self.config.recommend_only or not self.enabled:
            if changed:
                self._remember(decision, "recommended")
            return
        try:
            answer = await self.api.scale(f"/{decision.action}", self.config.model_name, decision.target)
        except RolloutApiError as error:
            if error.status is None:
                self._acted = now
            self._remember(decision, "refused", str(error))
            return
        self._acted = now
        self._remember(decision, "requested", str(answer.get("message", "")))

    def _remember(self, decision: Decision, outcome: str, message: str = "") -> None:
        logger.info(
            "autoscaler %s %s: %d -> %d engines, %s %s",
            outcome, decision.action, decision.engines, decision.target, decision.reason, message,
        )  # fmt: skip
        self.history.append(
            HistoryEntry(
                time.time(), decision.action, decision.engines, decision.target, decision.reason, outcome, message
            )
        )

    # -- what the API shows ------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Whether it acts, how many engines there are, the last decision, and what went wrong last."""
        latest = self.window.latest
        since = None if self._acted is None else round(time.monotonic() - self._acted, 1)
        return {
            "enabled": self.enabled,
            "recommend_only": self.config.recommend_only,
            "model_name": self.config.model_name,
            "engines": latest.engines if latest else None,
            "silent_engines": list(latest.silent) if latest else [],
            "min_engines": self.config.min_engines,
            "max_engines": self.config.max_engines,
            "token_usage": round(latest.usage, 4) if latest else None,
            "queued": latest.queued if latest else None,
            "throughput": round(latest.throughput, 1) if latest else None,
            "last_decision": self._decision(),
            "seconds_since_action": since,
            "uptime": round(time.time() - self._started, 1),
            "error": self.error,
        }

    def _decision(self) -> dict[str, Any] | None:
        """The last decision without its conditions, which have a path of their own."""
        last = self.last
        if last is None:
            return None
        return {"action": last.action, "engines": last.engines, "target": last.target, "reason": last.reason}

    def conditions(self) -> dict[str, Any]:
        """Every condition as it stands now."""
        return {"conditions": [asdict(condition) for condition in conditions(self.window, self.config)]}

    def scale_history(self, limit: int) -> dict[str, Any]:
        """The newest entries, newest first."""
        entries = list(self.history)[::-1][:limit]
        return {"history": [asdict(entry) for entry in entries], "total_count": len(self.history)}
