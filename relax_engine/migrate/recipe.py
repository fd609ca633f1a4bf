"""From a source to a draft: the launch command's settings, mapped.

What lives here: reading a launch script or a JSON list of settings, and choosing the mapping. What does not: writing
files (`migrate`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relax_engine.migrate.draft import Draft
from relax_engine.migrate.errors import MigrationError
from relax_engine.migrate.hydra import recipe_settings
from relax_engine.migrate.launch import Framework, Launch, find_launches
from relax_engine.migrate.report import Report
from relax_engine.migrate.shell.evaluate import evaluate, evaluate_text, expand_text
from relax_engine.migrate.shell.expand import Variables
from relax_engine.migrate.shell.symbols import symbol
from relax_engine.migrate.shell.trace import Trace
from relax_engine.migrate.slime.mapping import map_flags
from relax_engine.migrate.verl.mapping import map_settings, with_aliases
from relax_engine.migrate.verl.settings import Settings

_ROOT_MARKS = (".git", "pyproject.toml", "setup.py")
_REDACCEL_VARIABLES = ("BATCH_SIZE", "MICRO_BATCH_SIZE")


@dataclass(slots=True)
class Recipe:
    """A mapped recipe: its draft, devices of the source, what its reward is named by, and the file of its tools."""

    draft: Draft
    path: Path
    root: Path
    actor: int
    rollout: int | None = None
    asynchronous: bool = False
    reward: dict[str, str] = field(default_factory=dict)
    reward_arguments: list[str] = field(default_factory=list)
    tools: str | None = None


def source_root(path: Path) -> Path:
    """The checkout that a script belongs to: the nearest folder above it with a project's mark, else its own."""
    folders = [path.resolve().parent, *path.resolve().parent.parents]
    return next((folder for folder in folders if any((folder / mark).exists() for mark in _ROOT_MARKS)), folders[0])


def read_script(path: Path, framework: Framework, arguments: list[str] | None = None) -> Recipe:
    """Map the first training command of a script.

    Raises:
        MigrationError: the script cannot be read, or starts no training of this framework.
    """
    root = source_root(path)
    trace = evaluate(path, arguments=arguments, directory=root)
    launches = find_launches(trace, framework)
    if not launches:
        raise MigrationError(f"{path}: no command starts training with {framework}")
    recipe = _mapped(launches[0], framework, path, root, _extra(trace, launches[0], framework, path, root))
    notes = recipe.draft.report.notes
    notes += [f"{name} is sourced by the script and was not there" for name in dict.fromkeys(trace.missing)]
    if len(launches) > 1:
        lines = ", ".join(str(launch.line) for launch in launches[1:])
        notes.append(f"further training commands at line {lines} are left out: migrate them as recipes of their own")
    return recipe


def _extra(trace: Trace, launch: Launch, framework: Framework, path: Path, root: Path) -> dict[str, str]:
    if framework == "verl":
        return recipe_settings(launch.options, path, root)
    if framework == "redaccel":
        scalars = trace.variables.scalars
        return {name: scalars[name] for name in _REDACCEL_VARIABLES if name in scalars}
    return {}


def _mapped(launch: Launch, framework: Framework, path: Path, root: Path, below: Mapping[str, str]) -> Recipe:
    draft = Draft(Report(str(path), framework))
    if framework in ("slime", "relax"):
        devices = map_flags(launch.words, draft, root)
        asynchronous = launch.module.endswith("train_async.py") or bool(draft.values.pop("fully_async", False))
        resource = draft.values.pop("resource", None)
        draft.values.pop("colocate", None)
        draft.values.pop("hybrid", None)
        actor = devices.actor or 8
        if resource is not None:
            counts = json.loads(resource) if isinstance(resource, str) else resource
            actor = counts.get("actor", [1, actor])[1]
            devices.rollout = counts["rollout"][1] if asynchronous and "rollout" in counts else None
        return Recipe(draft, path, root, actor, devices.rollout, asynchronous)
    settings = Settings(with_aliases({**below, **launch.overrides()}), supervised="sft" in launch.module)
    map_settings(settings, draft)
    rollout = settings.rollout_devices or None
    recipe = Recipe(draft, path, root, settings.devices - (rollout or 0), rollout, "async" in launch.module)
    recipe.reward, recipe.reward_arguments, recipe.tools = settings.reward, settings.reward_arguments, settings.tools
    return recipe


def read_listing(path: Path, framework: Framework) -> Iterator[Recipe]:
    """Map every recipe of a JSON list: `overrides` and `shell_vars`, or `arg_groups` and `train_cmd`.

    Raises:
        MigrationError: the file is no such list.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MigrationError(f"{path}: {error}") from error
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        raise MigrationError(f"{path}: expected a JSON list of recipes")
    for item in content:
        name = Path(str(item.get("path", path)))
        launch = _listed_flags(item) if "arg_groups" in item else _listed_overrides(item)
        yield _mapped(launch, framework, name, name.parent, {})


def _listed_overrides(item: Mapping[str, Any]) -> Launch:
    variables = Variables()
    for name, text in item.get("shell_vars", {}).items():
        plain = re.sub(r"""["']?\s+#.*$""", "", str(text)).strip("\"'")
        variables.scalars[name] = _expanded(plain, variables)
    words = [_expanded(word, variables) for word in item.get("overrides", [])]
    return Launch(str(item.get("module", "")), words)


def _listed_flags(item: Mapping[str, Any]) -> Launch:
    variables = Variables()
    for name, words in item["arg_groups"].items():
        variables.arrays[name] = [_expanded(word, variables) for word in words]
    for command in item.get("train_cmd", []):
        trace = evaluate_text(command, variables)
        launches = find_launches(trace, "slime")
        if launches:
            return launches[0]
    return Launch("", [word for words in variables.arrays.values() for word in words])


def _expanded(text: str, variables: Variables) -> str:
    """`text` with its variables; text that was cut off in the middle of an expansion is unknown."""
    try:
        return expand_text(text, variables)
    except MigrationError:
        return symbol(text)
