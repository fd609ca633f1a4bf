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
from relax_engine.migrate.code.waits import await_calls
from relax_engine.migrate.errors import MigrationError


@dataclass(slots=True)
class RewardCode:
    """Files to write by name, and what to know about them.

    `group` says that the reward takes whole groups, `judge` that it asks one.
    """

    files: dict[str, str] = field(default_factory=dict)
    group: bool = False
    judge: bool = False
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
    result.judge = bool(collection.judges)
    if result.judge:
        result.files["llm_judge.py"] = _JUDGE
        main = f"reward_{collection.algo}.py"
        result.files[main] = result.files[main].replace(entry.MARK, f"{entry.MARK}    llm_judge.use(args)\n")
        result.files[main] = _with_import(result.files[main])
    result.files, problems = await_calls(result.files, collection.judges)
    result.notes += problems
    return result


def _with_import(code: str) -> str:
    """`llm_judge` as a module, imported below the docstring and imports from `__future__`."""
    tree = cst.parse_module(code)
    first = 0
    for node in tree.body:
        text = cst.Module([node]).code.strip()
        if not text.startswith(('"', "'", "from __future__")):
            break
        first += 1
    line = cst.ensure_type(cst.parse_statement("from . import llm_judge\n"), cst.SimpleStatementLine)
    return tree.with_changes(body=[*tree.body[:first], line, *tree.body[first:]]).code


_JUDGE = '''"""The judge that the source asked through its framework: at --genrm-url, `judge_model` under `custom`."""

from relax_engine.rewards.genrm import ask

_SETTINGS = {}


def use(args):
    """Ask the judge that these settings name."""
    _SETTINGS["args"] = args


async def call_judge(prompt, *_, **__):
    """The judge's answer to a prompt, or to messages."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    args = _SETTINGS["args"]
    return await ask(args, messages, model=getattr(args, "judge_model", "default"))
'''


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
