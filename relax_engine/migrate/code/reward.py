"""One reward with everything it imports from its source.

What lives here: collecting and rewriting the modules. What does not: the rewriting of one (`transform`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst

from relax_engine.migrate.code import entry
from relax_engine.migrate.code.dispatch import OneSource
from relax_engine.migrate.code.modules import Place
from relax_engine.migrate.code.transform import Rewriter
from relax_engine.migrate.errors import MigrationError

_MOST_MODULES = 200


@dataclass(slots=True)
class RewardCode:
    """Files to write by name, and what to know about them; `group` for a reward that takes whole groups."""

    files: dict[str, str] = field(default_factory=dict)
    group: bool = False
    unresolved: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def migrate_reward(
    source: Path, name: str, algo: str, *, root: Path, settings: list[str] | None = None, data_source: str | None = None
) -> RewardCode:
    """Rewrite the reward function or class `name` of a file as `reward_<algo>.py`, with the modules it imports.

    Args:
        source: The file.
        name: A function, or a reward class of RedAccel.
        algo: Name of the recipe.
        root: Folder that the source's absolute imports start from.
        settings: Parameters that are filled from `args`.
        data_source: Keep only what a dispatch over `data_source` does for this one.

    Raises:
        MigrationError: the file has no such function, or is not Python.
    """
    result = RewardCode()
    names: dict[Path, str] = {source.resolve(): f"reward_{algo}"}
    queue = [source.resolve()]

    def copy(file: Path) -> str:
        file = file.resolve()
        if file not in names:
            stem = file.parent.name if file.stem == "__init__" else file.stem
            taken = set(names.values())
            names[file] = next(free for free in _candidates(stem, algo) if free not in taken)
            queue.append(file)
        return names[file]

    while queue:
        file = queue.pop(0)
        if len(names) > _MOST_MODULES:
            raise MigrationError(f"{source}: it imports more than {_MOST_MODULES} modules of its source")
        tree = _parse(file)
        rewriter = Rewriter(Place(file, root.resolve()), copy)
        chosen = tree if data_source is None else tree.visit(OneSource(data_source))
        code = chosen.visit(rewriter).code
        result.unresolved += [f"{item} (in {file.name})" for item in rewriter.unresolved]
        if file == source.resolve():
            code = code.rstrip("\n") + "\n" + _entry(tree, name, source, settings or [], result)
        result.files[f"{names[file]}.py"] = code
    return result


def _candidates(stem: str, algo: str) -> list[str]:
    return [stem, *(f"{stem}_{algo}_{number}" for number in range(1, _MOST_MODULES + 2))]


def _parse(file: Path) -> cst.Module:
    try:
        return cst.parse_module(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, cst.ParserSyntaxError) as error:
        raise MigrationError(f"{file}: {' '.join(str(error).split())}") from error


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
