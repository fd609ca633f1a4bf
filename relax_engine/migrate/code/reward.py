"""One reward with everything it imports from its source.

What lives here: the reward's module and its entry point. What does not: which modules come along (`collect`), and the
rewriting of one (`transform`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst

from relax_engine.migrate.code import entry
from relax_engine.migrate.code.collect import Collection, parse
from relax_engine.migrate.errors import MigrationError


@dataclass(slots=True)
class RewardCode:
    """Files to write by name, and what to know about them; `group` for a reward that takes whole groups."""

    files: dict[str, str] = field(default_factory=dict)
    group: bool = False
    unresolved: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def migrate_reward(source: Path, name: str, collection: Collection, *, settings: list[str] | None = None) -> RewardCode:
    """Rewrite the reward function or class `name` of a file as `reward_<algo>.py`, with the modules it imports.

    Args:
        source: The file.
        name: A function, or a reward class of RedAccel.
        collection: Where modules are looked up, and the name of the recipe.
        settings: Parameters that are filled from `args`.

    Raises:
        MigrationError: the file has no such function, or is not Python.
    """
    result = RewardCode()
    collection.add(source, f"reward_{collection.algo}")
    for file, module, code in collection.rewritten():
        if file == source.resolve():
            code = code.rstrip("\n") + "\n" + _entry(parse(file), name, source, settings or [], result)
        result.files[f"{module}.py"] = code
    result.unresolved = collection.unresolved
    return result


def _entry(tree: cst.Module, name: str, source: Path, settings: list[str], result: RewardCode) -> str:
    found = entry.find(tree, name)
    if found is None:
        raise MigrationError(f"{source}: there is no function or class {name!r} at its top level")
    if isinstance(found, entry.RewardClass):
        result.group = found.group
        return entry.for_class(found)
    if found.takes_samples:
        result.group = found.parameters[1] == "samples"
        return "" if name == "reward_func" else f"\n\nreward_func = {name}\n"
    result.group = found.is_batch
    for parameter in entry.unmatched(found, settings):
        result.notes.append(f"{name} has a parameter {parameter!r} that nothing here fills: give it a default")
    return entry.for_function(found, settings)
