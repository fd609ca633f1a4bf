"""Where an imported module's file is.

What lives here: resolving names against the recipe's folder and the source's checkout. What does not: installed
packages, whose imports stay as they are.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

FOREIGN = ("verl", "redaccel")
"""Packages whose imports are taken out of migrated code."""

_TOOLS, _ACTIONS = "relax_engine.rollout.tools", "relax_engine.rollout.action_tools"

OURS = {
    "verl.tools.base_tool.BaseTool": (_TOOLS, "Tool"),
    "verl.tools.schemas.OpenAIFunctionToolSchema": (_TOOLS, "ToolSchema"),
    "verl.tools.schemas.OpenAIFunctionSchema": (_TOOLS, "FunctionSchema"),
    "verl.tools.schemas.ToolResponse": (_TOOLS, "ToolResponse"),
    "redaccel.verl.agent.tool_envs.ToolBase": (_ACTIONS, "ActionTool"),
    "verl.workers.agent.tool_envs.ToolBase": (_ACTIONS, "ActionTool"),
}
"""Names of a framework that have the same meaning here, by module and name."""

JUDGES = ("redaccel.verl.rewards.utils",)
"""Modules whose functions `call_*` ask a judge."""

TRACES = ("verl.utils.rollout_trace",)
"""Modules whose decorators only trace."""


@dataclass(frozen=True, slots=True)
class Place:
    """A source file, and the folder that absolute imports are looked up in besides its own."""

    file: Path
    root: Path

    def find(self, module: str, level: int) -> Path | None:
        """The file of `module`, imported with `level` leading dots; None for what is not part of the source."""
        if level:
            base = self.file.parent
            for _ in range(level - 1):
                base = base.parent
            return _file(base, module)
        if module.partition(".")[0] in sys.stdlib_module_names:
            return None
        beside = [] if (self.file.parent / "__init__.py").is_file() else [self.file.parent]
        for base in (*beside, self.root):
            found = _file(base, module)
            if found is not None and found != self.file:
                return found
        return None

    def absolute(self, module: str, level: int) -> str:
        """The dotted name of `module`, imported with `level` leading dots; relative to the folder of the source."""
        if not level:
            return module
        folder = self.file.parents[level - 1]
        parts = folder.relative_to(self.root).parts if folder.is_relative_to(self.root) else ()
        return ".".join([*parts, *([module] if module else [])])


def is_foreign(module: str) -> bool:
    """Whether a module belongs to a framework that recipes leave behind."""
    return module.partition(".")[0] in FOREIGN


def _file(base: Path, module: str) -> Path | None:
    path = base.joinpath(*module.split(".")) if module else base
    if path.with_suffix(".py").is_file() and module:
        return path.with_suffix(".py")
    return path / "__init__.py" if (path / "__init__.py").is_file() else None
