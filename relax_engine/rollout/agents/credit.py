"""`--agentic-custom-advantage-path`: the user says what each context of a group is worth.

    advantage_func(metadata_by_slot) -> list[dict name -> advantage] | None

`metadata_by_slot` has, for each sample of the group, `{name: {**metadata, "reward": ...}}` of its contexts. The answer
has a number for each of them in the same places; it is the base credit, which later stages whiten, clip and correct,
and it is not normalised in the group. None leaves the group out, and another one takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relax_engine.rollout.agents.exports import EXPORT, ExportError
from relax_engine.rollout.filters import FilterOutput, SampleFilter, apply_filter
from relax_engine.types import Sample

AdvantageFunction = Callable[[list[dict[str, dict[str, Any]]]], Any]


def assign_credit(function: AdvantageFunction, group: Sequence[Sample]) -> bool:
    """Fill `custom_advantage` of every context; False if the group is to be left out.

    Raises:
        ExportError: the function's answer does not fit the group.
    """
    slots: dict[int, dict[str, Sample]] = {}
    for sample in group:
        slots.setdefault(sample.index, {})[sample.metadata[EXPORT]] = sample
    given = [
        {name: {**sample.metadata, "reward": sample.reward} for name, sample in contexts.items()}
        for contexts in slots.values()
    ]
    answer = function(given)
    if answer is None:
        return False
    wanted = [set(contexts) for contexts in slots.values()]
    if not isinstance(answer, list) or [set(values) for values in answer] != wanted:
        raise ExportError(
            f"--agentic-custom-advantage-path returned {answer!r:.300}; return a list of one dictionary per sample, "
            f"with a number for each of {[sorted(names) for names in wanted]}, or None to leave the group out"
        )
    for contexts, values in zip(slots.values(), answer, strict=True):
        for name, sample in contexts.items():
            sample.custom_advantage = float(values[name])
    return True


def with_credit(function: AdvantageFunction | None, sample_filter: SampleFilter | None) -> SampleFilter | None:
    """The filter of scored groups that also gives credit; a group without any is left out as `no_credit`."""
    if function is None:
        return sample_filter

    def decide(args: Any, samples: Sequence[Sample]) -> FilterOutput:
        if not assign_credit(function, samples):
            return FilterOutput(False, "no_credit")
        return FilterOutput(True) if sample_filter is None else apply_filter(sample_filter, args, samples)

    return decide
