"""From slime's or Relax's flags to a draft.

What lives here: the order in which a flag finds its meaning, and how many devices the roles have. What does not: the
names that differ (`tables`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from relax_engine.config.fields import all_fields, pass_through_field
from relax_engine.config.sections.evaluation import read_eval_datasets
from relax_engine.migrate.draft import Draft, read_value
from relax_engine.migrate.slime.tables import FUNCTIONS, NEEDS_YOU, NOT_NEEDED, RENAMED, SUPERVISED_ROLLOUTS, VALUES

_PACKAGES = ("slime.", "relax.")


@dataclass(slots=True)
class Devices:
    """Devices of the source: the trainer's, and the rollout's where it has its own; None where unknown."""

    actor: int | None = None
    rollout: int | None = None


def flag_groups(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag of a command line, by name with underscores, and its values."""
    name: str | None = None
    values: list[str] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            if name is not None:
                yield name, values
            name, equals, inline = word[2:].partition("=")
            name, values = name.replace("-", "_"), [inline] if equals else []
        elif name is not None:
            values.append(word)
    if name is not None:
        yield name, values


def map_flags(words: Sequence[str], draft: Draft, root: Path) -> Devices:
    """Give every flag an entry in the draft's report; returns the devices that the flags name.

    Files that flags name are looked up below `root`.
    """
    groups = dict(flag_groups(words))
    _custom_config(groups, draft, root)
    devices = _devices(groups, draft)
    for name, values in groups.items():
        _one(name, values, draft)
    return devices


def _custom_config(groups: dict[str, list[str]], draft: Draft, root: Path) -> None:
    """The keys of `--custom-config-path` go to the new YAML file, where the file is there."""
    path = root / " ".join(groups.get("custom_config_path", []))
    if not path.is_file():
        return
    try:
        keys = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return
    if isinstance(keys, dict):
        draft.custom |= keys
        text = " ".join(groups.pop("custom_config_path"))
        draft.settle("--custom-config-path", text, {}, "its keys are under `custom` in the YAML file")


def _devices(groups: dict[str, list[str]], draft: Draft) -> Devices:
    devices = Devices()
    counts: list[int | None] = []
    for name in ("actor_num_nodes", "actor_num_gpus_per_node", "rollout_num_gpus"):
        values = groups.pop(name, None)
        if values is None:
            counts.append(None)
            continue
        count = read_value(values[0]) if values else None
        counts.append(count if isinstance(count, int) else None)
        if counts[-1] is None:
            draft.needs(_flag(name), " ".join(values), "the number is set outside of the script: correct --resource")
        else:
            draft.settle(_flag(name), " ".join(values), {}, "part of --resource")
    if counts[1] is not None or counts[0] is not None:
        devices.actor = (counts[0] or 1) * (counts[1] or 8)
    devices.rollout = counts[2]
    return devices


def _one(name: str, values: list[str], draft: Draft) -> None:
    text = " ".join(values)
    field = RENAMED.get(name, name)
    if (name, text) in VALUES:
        draft.settle(_flag(name), text, dict(VALUES[name, text]))
    elif field == "rollout_num_gpus_per_engine":
        draft.skip(_flag(name), text, "an engine runs on one device; its tensor parallelism changes no result")
    elif field in all_fields():
        _field(name, field, values, draft)
    elif name.startswith("no_") and name[3:] in all_fields() and all_fields()[name[3:]].type_name == "bool":
        draft.settle(_flag(name), text, {name[3:]: False})
    else:
        _other(name, values, draft)


def _field(name: str, field: str, values: list[str], draft: Draft) -> None:
    text = " ".join(values)
    spec = all_fields()[field]
    value: Any = read_value(text) if spec.type_name in ("int", "float") else text
    if spec.is_bool:
        value = True if not values else read_value(text)
    if not spec.is_bool and spec.takes_many:
        value = values
    if field == "eval_prompt_data":
        value = read_eval_datasets(values)
    if field.endswith("_path") and text.startswith(_PACKAGES):
        value = FUNCTIONS.get(text.rpartition(".")[2])
        if text.endswith(SUPERVISED_ROLLOUTS):
            draft.skip(_flag(name), text, "what the mode (or --loss-type sft) does anyway")
            return
        if value is None:
            draft.needs(
                _flag(name), text, "a function of the source's package: copy it beside this recipe and name it here"
            )
            return
    draft.settle(_flag(name), text, {field: value})


def _other(name: str, values: list[str], draft: Draft) -> None:
    text = " ".join(values)
    for table, conclude in ((NEEDS_YOU, draft.needs), (NOT_NEEDED, draft.skip)):
        for pattern, reason in table.items():
            if fnmatch.fnmatchcase(name, pattern):
                conclude(_flag(name), text, reason)
                return
    if pass_through_field(name):
        read: list[Any] = [read_value(value) for value in values]
        draft.settle(_flag(name), text, {name: True if not read else read[0] if len(read) == 1 else read})
    else:
        draft.needs(_flag(name), text, "there is no flag of this name; see docs/configuration.md for the nearest")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
