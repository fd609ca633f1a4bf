"""Functions of users that see a rollout or an evaluation as a whole.

What lives here: which hooks there are, what each receives, what its answer means. What does not: generation
(`custom_generate`, `custom_rollout`), dynamic filters (`filters`) and rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from relax_engine.rollout.prefetch import PromptPrefetcher
from relax_engine.types import SampleGroup
from relax_engine.utils.hooks import load_function

Hook = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class RolloutHooks:
    """The loaded functions; None where the flag is not set.

    Attributes:
        sample_filter: `--rollout-sample-filter-path`.
        all_samples: `--rollout-all-samples-process-path`.
        log: `--custom-rollout-log-function-path`.
        eval_log: `--custom-eval-rollout-log-function-path`.
    """

    args: Any
    sample_filter: Hook | None = None
    all_samples: Hook | None = None
    log: Hook | None = None
    eval_log: Hook | None = None

    @classmethod
    def from_config(cls, args: Any) -> Self:
        """Load what the flags name.

        Raises:
            ValueError: a path without a function.
            ImportError: its module cannot be imported.
        """
        return cls(
            args,
            _load(args.rollout_sample_filter_path),
            _load(args.rollout_all_samples_process_path),
            _load(args.custom_rollout_log_function_path),
            _load(args.custom_eval_rollout_log_function_path),
        )

    def filter_samples(self, groups: Sequence[SampleGroup]) -> None:
        """`fn(args, groups)` may set `remove_sample`, which takes a sample out of the loss."""
        if self.sample_filter is not None:
            self.sample_filter(self.args, list(groups))

    def process_all(self, groups: Sequence[SampleGroup], source: PromptPrefetcher) -> None:
        """`fn(args, groups, data_source)` sees every scored group, those left out by a filter too."""
        if self.all_samples is not None:
            self.all_samples(self.args, list(groups), source)

    def log_rollout(
        self, rollout_id: int, groups: Sequence[SampleGroup], metrics: dict[str, float], seconds: float
    ) -> bool:
        """`fn(rollout_id, args, samples, extra_metrics, time) -> bool`; it may add metrics.

        True means that it logged the rollout itself, and the built-in `rollout/` metrics are left out.
        """
        if self.log is None:
            return False
        samples = [sample for group in groups for sample in group]
        return bool(self.log(rollout_id, self.args, samples, metrics, seconds))

    def log_evaluation(
        self, step: int, data: Mapping[str, Mapping[str, Sequence[Any]]], metrics: dict[str, Any]
    ) -> bool:
        """`fn(rollout_id, args, data, extra_metrics) -> bool`; it may add metrics, True leaves the built-in ones out.

        `data` is `{dataset: {"rewards": [...], "truncated": [...], "samples": [...]}}`, an entry each per sample.
        """
        return self.eval_log is not None and bool(self.eval_log(step, self.args, data, metrics))


def _load(path: str | None) -> Hook | None:
    return None if path is None else load_function(path)
