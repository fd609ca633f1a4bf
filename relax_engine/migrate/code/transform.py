"""The rewriting of one module.

What lives here: imports of the source's own modules become relative, imports and decorators of the framework go, and
reward classes lose their base. What does not: a dispatch over `data_source` (`dispatch`), and the entry point
(`entry`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import libcst as cst

from relax_engine.migrate.code.modules import JUDGES, OURS, TRACES, Place, is_foreign

REWARD_BASES = ("GRPORewards", "GroupRewards")
"""RedAccel's bases of reward classes: one sample at a time, and a whole group."""


class Rewriter(cst.CSTTransformer):
    """Rewrites a module; `copy` gives the new module name of a file that has to come along.

    `unresolved` collects imports of a framework's package whose file is not there, `judges` the names of functions that
    ask a judge.
    """

    def __init__(self, place: Place, copy: Callable[[Path], str]) -> None:
        """Rewrite the module at `place`."""
        super().__init__()
        self.place, self.copy = place, copy
        self.unresolved: list[str] = []
        self.judges: set[str] = set()
        self._dropped: set[str] = set()
        self._bare: list[bool] = []  # of the classes around the current node, whether they lose a base

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> Any:
        """Point imports of the source's modules at the copies."""
        level = len(updated_node.relative)
        module = dotted(updated_node.module)
        if isinstance(updated_node.names, cst.ImportStar):
            file = self.place.find(module, level)
            return updated_node if file is None else _relative(updated_node, self.copy(file))
        absolute = self.place.absolute(module, level)
        if absolute in TRACES:
            self._dropped.update(_local(alias) for alias in updated_node.names)
            return cst.RemoveFromParent()
        statements: list[cst.ImportFrom] = []
        remaining: list[cst.ImportAlias] = []
        shared: dict[str, list[tuple[str, str]]] = {}
        for alias in updated_node.names:
            name = dotted(alias.name)
            if absolute in JUDGES and name.startswith("call_"):
                self.judges.add(_local(alias))
                statements.append(_import_judge(_local(alias)))
                continue
            ours = OURS.get(f"{absolute}.{name}")
            if ours is not None:
                shared.setdefault(ours[0], []).append((ours[1], _local(alias)))
                continue
            file = self.place.find(f"{module}.{name}" if module else name, level)
            if file is not None:
                statements.append(_import_module(self.copy(file), alias))
            else:
                remaining.append(alias.with_changes(comma=cst.MaybeSentinel.DEFAULT))
        statements += [_import_ours(home, names) for home, names in shared.items()]
        if not remaining:
            return cst.FlattenSentinel(statements)
        rest = updated_node.with_changes(names=remaining)
        file = self.place.find(module, level)
        if file is not None:
            statements.append(_relative(rest, self.copy(file)))
        elif is_foreign(module) or level:
            self._drop(module or "." * level, remaining)
        else:
            statements.append(rest)
        return cst.FlattenSentinel(statements) if statements else cst.RemoveFromParent()

    def _drop(self, module: str, names: list[cst.ImportAlias]) -> None:
        for alias in names:
            name = dotted(alias.name)
            self._dropped.add(_local(alias))
            if name not in REWARD_BASES and not name.startswith(("register", "rewards_registry", "group_rewards")):
                self.unresolved.append(f"{module}.{name}")

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> Any:
        """`import helper` becomes `from . import helper` where the file is the source's."""
        statements: list[cst.Import | cst.ImportFrom] = []
        for alias in updated_node.names:
            name = dotted(alias.name)
            file = self.place.find(name, 0)
            if file is not None and (alias.asname is not None or "." not in name):
                statements.append(_import_module(self.copy(file), alias))
            elif is_foreign(name):
                self.unresolved.append(name)
            else:
                statements.append(
                    updated_node.with_changes(names=[alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)])
                )
        return cst.FlattenSentinel(statements) if statements else cst.RemoveFromParent()

    def leave_Decorator(self, original_node: cst.Decorator, updated_node: cst.Decorator) -> Any:
        """Registration with the framework goes."""
        name = _root_name(updated_node.decorator)
        registers = name in self._dropped or name.endswith("rewards_registry")
        return cst.RemoveFromParent() if registers else updated_node

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        """Remember whether the class loses a base."""
        self._bare.append(any(_root_name(base.value) in self._dropped for base in node.bases))

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        """A reward class stands alone."""
        self._bare.pop()
        bases = [base for base in updated_node.bases if _root_name(base.value) not in self._dropped]
        empty = cst.MaybeSentinel.DEFAULT
        if len(bases) == len(updated_node.bases):
            return updated_node
        return (
            updated_node.with_changes(bases=bases, lpar=empty, rpar=empty)
            if not bases
            else updated_node.with_changes(bases=bases)
        )

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        """`super().__init__(...)` of a class that lost its base takes no arguments."""
        if len(updated_node.body) != 1 or not any(self._bare[-1:]):
            return updated_node
        code = cst.Module([updated_node]).code.strip()
        if code.startswith("super().__init__("):
            return cst.ensure_type(cst.parse_statement("super().__init__()"), cst.SimpleStatementLine).with_changes(
                leading_lines=updated_node.leading_lines
            )
        return updated_node


def _relative(node: cst.ImportFrom, module: str) -> cst.ImportFrom:
    return node.with_changes(module=cst.Name(module), relative=[cst.Dot()])


def _local(alias: cst.ImportAlias) -> str:
    return dotted(alias.asname.name) if alias.asname else dotted(alias.name)


def _import_judge(local: str) -> cst.ImportFrom:
    asname = cst.AsName(cst.Name(local)) if local != "call_judge" else None
    names = [cst.ImportAlias(name=cst.Name("call_judge"), asname=asname)]
    return cst.ImportFrom(module=cst.Name("llm_judge"), names=names, relative=[cst.Dot()])


def _import_ours(module: str, names: list[tuple[str, str]]) -> cst.ImportFrom:
    parts = [name if name == local else f"{name} as {local}" for name, local in names]
    line = cst.ensure_type(cst.parse_statement(f"from {module} import {', '.join(parts)}"), cst.SimpleStatementLine)
    return cst.ensure_type(line.body[0], cst.ImportFrom)


def _import_module(module: str, alias: cst.ImportAlias) -> cst.ImportFrom:
    local = _local(alias)
    asname = cst.AsName(cst.Name(local)) if local != module else None
    return cst.ImportFrom(
        module=None, names=[cst.ImportAlias(name=cst.Name(module), asname=asname)], relative=[cst.Dot()]
    )


def dotted(node: cst.CSTNode | None) -> str:
    """`a.b.c` of a name or an attribute, else an empty string."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        return f"{dotted(node.value)}.{node.attr.value}"
    return ""


def _root_name(node: cst.CSTNode) -> str:
    while isinstance(node, cst.Call | cst.Attribute):
        node = node.func if isinstance(node, cst.Call) else node.value
    return dotted(node)
