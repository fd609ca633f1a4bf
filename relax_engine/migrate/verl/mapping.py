"""From verl's settings to a draft: the rules first, then the tables.

What lives here: the order in which a key finds its meaning. What does not: the meanings (`data`, `objective`,
`sampling`, `training`, `tables`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping

from relax_engine.migrate.draft import Draft, read_value
from relax_engine.migrate.verl import data, objective, sampling, training, turns
from relax_engine.migrate.verl.settings import Settings
from relax_engine.migrate.verl.tables import FIELDS, LATE_NOT_NEEDED, NEEDS_YOU, NOT_NEEDED

RULES: tuple[Callable[[Settings, Draft], None], ...] = (
    data.model,
    data.data_files,
    data.batches,
    data.micro_batches,
    objective.algorithm,
    objective.clipping,
    objective.kl,
    objective.routing_replay,
    objective.corrections,
    sampling.sampling,
    sampling.tensor_parallel,
    turns.turns,
    training.schedule,
    training.length_of_training,
    training.checkpoints,
    training.trackers,
    sampling.rewards,
    data.devices,
)
"""Settings that depend on each other, in the order in which they are looked at."""

ALIASES = {
    "BATCH_SIZE": "data.train_batch_size",
    "MICRO_BATCH_SIZE": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.response_length": "data.max_response_length",
}
"""RedAccel's names for settings that verl has too; they count where verl's name is not given."""


def map_settings(settings: Settings, draft: Draft) -> None:
    """Give every setting an entry in the draft's report."""
    for apply in RULES:
        apply(settings, draft)
    for key, value in settings.left().items():
        settings.take(key)
        _by_table(key, value, draft)


def with_aliases(values: Mapping[str, str]) -> dict[str, str]:
    """Settings under verl's names."""
    known = {key.lstrip("+~") for key in values}
    return {ALIASES[key] if key in ALIASES and ALIASES[key] not in known else key: text for key, text in values.items()}


def _by_table(key: str, value: str, draft: Draft) -> None:
    field = FIELDS.get(key)
    if field is not None:
        read = read_value(value)
        if read is None:
            draft.skip(key, value, "null is our default too")
        else:
            draft.settle(key, value, {field: read})
        return
    for table, conclude in (
        (NOT_NEEDED, draft.skip),
        (NEEDS_YOU, _unless_off(draft, value)),
        (LATE_NOT_NEEDED, draft.skip),
    ):
        for pattern, reason in table.items():
            if fnmatch.fnmatchcase(key, pattern):
                conclude(key, value, reason)
                return
    if key.isupper() or "." not in key:
        draft.skip(key, value, "an environment variable or option of the source's launcher")
        return
    draft.needs(key, value, "no table knows this setting")


def _unless_off(draft: Draft, value: str) -> Callable[[str, str, str], None]:
    if read_value(value) in (None, False, 0, "", [], "none", "disabled"):
        return lambda key, text, reason: draft.skip(key, text, "off in the source")
    return draft.needs
