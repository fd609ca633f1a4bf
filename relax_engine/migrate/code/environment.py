"""Tools of other frameworks as an environment: `env_<algo>.py` with `build_env`.

What lives here: reading verl's YAML of tools, and the text of the module. What does not: the tools' own code, which is
rewritten like a reward's (`collect`), and what environments do (`relax_engine.rollout.tools`).
"""

from __future__ import annotations

import pprint
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libcst as cst
import yaml

from relax_engine.migrate.code.collect import Collection, parse
from relax_engine.migrate.errors import MigrationError


@dataclass(slots=True)
class EnvironmentCode:
    """Files to write by name, the schemas that the chat template shows, and which tools could not be taken over."""

    files: dict[str, str] = field(default_factory=dict)
    schemas: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)


def migrate_tools(config: Path, collection: Collection) -> EnvironmentCode:
    """The tools that a YAML file of verl lists (`class_name`, `config`, `tool_schema`).

    Raises:
        MigrationError: the file is no such list.
    """
    try:
        listed = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise MigrationError(f"{config}: {' '.join(str(error).split())}") from error
    tools = listed.get("tools") if isinstance(listed, dict) else None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) and "class_name" in tool for tool in tools):
        raise MigrationError(f"{config}: expected `tools`, a list of entries with class_name, config and tool_schema")
    result = EnvironmentCode()
    imports, entries = [], []
    for tool in tools:
        module, _, name = str(tool["class_name"]).rpartition(".")
        file = collection.root.joinpath(*module.split(".")).with_suffix(".py")
        settings, schema = tool.get("config") or {}, tool.get("tool_schema")
        if settings.get("type") == "mcp" or "mcp" in tool:
            result.problems.append(f"{name} asks an MCP server for its tools: write it as a Tool of its own")
        elif not file.is_file() or not _has_class(file, name):
            result.problems.append(f"{tool['class_name']} is not in the source: copy it into env_{collection.algo}.py")
        else:
            imports.append(f"from .{collection.add(file)} import {name}\n")
            entries.append(f"    (\n        {name},\n{_literal(settings)},\n{_literal(schema)},\n    ),\n")
            result.schemas += [schema] if schema else []
    text = _TOOLS.format(source=config.name, imports="".join(imports), entries="".join(entries))
    return _finished(result, text, collection)


def migrate_action_tool(file: Path, name: str, collection: Collection) -> EnvironmentCode:
    """A tool class of RedAccel, `name` in a file.

    Raises:
        MigrationError: the file has no such class, or is not Python.
    """
    if not _has_class(file, name):
        raise MigrationError(f"{file}: there is no class {name!r} at its top level")
    text = _ACTIONS.format(source=file.name, module=collection.add(file), name=name)
    return _finished(EnvironmentCode(), text, collection)


def _finished(result: EnvironmentCode, text: str, collection: Collection) -> EnvironmentCode:
    before = len(collection.unresolved)
    result.files = {f"{module}.py": code for _, module, code in collection.rewritten()}
    result.files[f"env_{collection.algo}.py"] = text
    result.unresolved = collection.unresolved[before:]
    return result


def _has_class(file: Path, name: str) -> bool:
    return any(isinstance(node, cst.ClassDef) and node.name.value == name for node in parse(file).body)


def _literal(value: Any) -> str:
    text = pprint.pformat(value, width=100, sort_dicts=False)
    return "\n".join(f"        {line}" for line in text.splitlines())


_TOOLS = '''"""The tools of {source} as an environment, for relax_engine.rollout.multi_turn."""

import functools

from relax_engine.rollout.tools import ToolEnvironment, ToolLimits, ToolSchema

{imports}
TOOLS = [
{entries}]
"""Class, settings and schema of each."""


@functools.cache
def _tools():
    """One object of each serves all samples of a process."""
    return [kind(config, ToolSchema.model_validate(schema) if schema else None) for kind, config, schema in TOOLS]


def build_env(sample=None, args=None, **_):
    """The environment of one sample."""
    return ToolEnvironment(_tools(), ToolLimits.from_args(args), sample)
'''

_ACTIONS = '''"""The tool of {source} as an environment, for relax_engine.rollout.multi_turn."""

from relax_engine.rollout.action_tools import ActionEnvironment

from .{module} import {name}


def build_env(sample=None, args=None, **_):
    """The environment of one sample, with a tool of its own."""
    return ActionEnvironment({name}, sample, args.max_turns)
'''
