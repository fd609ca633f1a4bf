"""Calls that wait for a server, awaited: helpers that ask a judge become coroutines, and so do all that call them.

What lives here: finding who calls whom by name, over all modules of a reward, and the rewriting. What does not: which
calls those are in the first place (`transform`, for RedAccel's helpers; here, for clients of OpenAI).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import libcst as cst

_CREATE = (".chat.completions.create", ".responses.create", ".embeddings.create")
_CLIENTS = {"OpenAI": "AsyncOpenAI", "AzureOpenAI": "AsyncAzureOpenAI"}


@dataclass(slots=True)
class _Module:
    tree: cst.Module
    waits: set[str]
    calls: dict[str, set[str]] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)  # local name -> module, name
    instances: dict[str, str] = field(default_factory=dict)  # name -> class
    classes: dict[str, set[str]] = field(default_factory=dict)  # class -> its methods
    aliases: dict[str, str] = field(default_factory=dict)


def await_calls(files: dict[str, str], seeds: dict[str, set[str]]) -> tuple[dict[str, str], list[str]]:
    """Make coroutines of all functions that call one.

    Args:
        files: Texts by file name.
        seeds: For each of them, names in it that are coroutines.

    Returns:
        The texts, and what could not be rewritten.
    """
    modules = {name: _read(cst.parse_module(text), seeds.get(name, set())) for name, text in files.items()}
    changed = True
    while changed:
        changed = any([_grow(module, modules) for module in modules.values()])
    result, problems = dict(files), []
    for name, module in modules.items():
        if module.waits:
            rewriter = _Awaiter(module.waits)
            result[name] = module.tree.visit(rewriter).code
            problems += [f"{name}: {problem}" for problem in rewriter.problems]
    return result, problems


def _read(tree: cst.Module, seeds: set[str]) -> _Module:
    reader = _Reader()
    tree.visit(reader)
    # Functions that are coroutines already await what they call.
    calls = {name: called for name, called in reader.calls.items() if name not in reader.coroutines}
    module = _Module(tree, set(seeds), calls, reader.imported, reader.instances, reader.classes, reader.aliases)
    if reader.asks_openai:
        module.waits |= {call for called in calls.values() for call in called if call.endswith(_CREATE)}
    return module


def _grow(module: _Module, modules: dict[str, _Module]) -> bool:
    before = len(module.waits)
    for local, (file, name) in module.imported.items():
        if file in modules and name in modules[file].waits:
            module.waits.add(local)
    for function, calls in module.calls.items():
        if calls & module.waits:
            module.waits.add(function)
    module.waits |= {alias for alias, name in module.aliases.items() if name in module.waits}
    for name, kind in module.instances.items():
        if "__call__" in module.waits and "__call__" in module.classes.get(kind, set()):
            module.waits.add(name)
    return len(module.waits) > before


def _called(node: cst.Call) -> str:
    """`f` of `f()`, `f` of `self.f()`, and for clients of OpenAI the end of the chain."""
    code = cst.Module([]).code_for_node(node.func)
    for end in _CREATE:
        if code.endswith(end):
            return end
    return code.removeprefix("self.")


class _Reader(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, set[str]] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        self.instances: dict[str, str] = {}
        self.classes: dict[str, set[str]] = {}
        self.aliases: dict[str, str] = {}
        self.coroutines: set[str] = set()
        self.asks_openai = False
        self._functions: list[str] = []
        self._classes: list[str] = []

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._classes.append(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self._classes.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if self._classes and not self._functions:
            self.classes.setdefault(self._classes[-1], set()).add(node.name.value)
        self._functions.append(node.name.value)
        self.calls.setdefault(node.name.value, set())
        if node.asynchronous is not None:
            self.coroutines.add(node.name.value)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._functions.pop()

    def visit_Call(self, node: cst.Call) -> None:
        if self._functions:
            self.calls[self._functions[-1]].add(_called(node))

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets if not self._functions else ():
            if isinstance(target.target, cst.Name) and isinstance(node.value, cst.Call):
                self.instances[target.target.value] = _called(node.value)
            elif isinstance(target.target, cst.Name) and isinstance(node.value, cst.Name):
                self.aliases[target.target.value] = node.value.value

    def visit_Attribute(self, node: cst.Attribute) -> None:
        if isinstance(node.value, cst.Name) and node.value.value == "openai" and node.attr.value in _CLIENTS:
            self.asks_openai = True

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        if isinstance(node.names, cst.ImportStar):
            return
        if isinstance(node.module, cst.Name) and node.module.value == "openai":
            self.asks_openai |= any(str(alias.name.value) in _CLIENTS for alias in node.names)
        if len(node.relative) != 1 or not isinstance(node.module, cst.Name):
            return
        for alias in node.names:
            name = str(alias.name.value)
            local = alias.asname.name.value if alias.asname and isinstance(alias.asname.name, cst.Name) else name
            self.imported[str(local)] = (f"{node.module.value}.py", name)


class _Awaiter(cst.CSTTransformer):
    """Awaits the calls, and says where that is not possible."""

    def __init__(self, waits: set[str]) -> None:
        super().__init__()
        self.waits = waits
        self.problems: list[str] = []
        self._around: list[str] = []  # names of functions, "" for what cannot wait

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._around.append(node.name.value)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        self._around.pop()
        name = updated_node.name.value
        if name not in self.waits or updated_node.asynchronous is not None:
            return updated_node
        if name == "__init__":
            self.problems.append("__init__ asks a server, and cannot wait for it")
            return updated_node
        return updated_node.with_changes(asynchronous=cst.Asynchronous())

    def visit_Lambda(self, node: cst.Lambda) -> None:
        self._around.append("")

    def leave_Lambda(self, original_node: cst.Lambda, updated_node: cst.Lambda) -> cst.Lambda:
        self._around.pop()
        return updated_node

    def visit_GeneratorExp(self, node: cst.GeneratorExp) -> None:
        self._around.append("")

    def leave_GeneratorExp(self, original_node: cst.GeneratorExp, updated_node: cst.GeneratorExp) -> cst.GeneratorExp:
        self._around.pop()
        return updated_node

    def visit_Await(self, node: cst.Await) -> bool:
        return False

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        for argument in original_node.args:
            if isinstance(argument.value, cst.Name) and argument.value.value in self.waits:
                self.problems.append(f"{argument.value.value} is a coroutine now, and is handed on to be called")
        if _called(original_node) not in self.waits:
            return updated_node
        if not self._around or not self._around[-1] or self._around[-1] == "__init__":
            self.problems.append(f"{_called(original_node)} is called where nothing can wait for it")
            return updated_node
        return cst.Await(updated_node, lpar=[cst.LeftParen()], rpar=[cst.RightParen()])

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> Any:
        """Clients of OpenAI become asynchronous ones, under their old names."""
        if not isinstance(updated_node.module, cst.Name) or updated_node.module.value != "openai":
            return updated_node
        if isinstance(updated_node.names, cst.ImportStar):
            return updated_node
        names = [
            alias.with_changes(name=cst.Name(_CLIENTS[str(alias.name.value)]), asname=_named(alias))
            if str(alias.name.value) in _CLIENTS
            else alias
            for alias in updated_node.names
        ]
        return updated_node.with_changes(names=names)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        """`openai.OpenAI` likewise."""
        value = updated_node.value
        if isinstance(value, cst.Name) and value.value == "openai" and updated_node.attr.value in _CLIENTS:
            return updated_node.with_changes(attr=cst.Name(_CLIENTS[updated_node.attr.value]))
        return updated_node


def _named(alias: cst.ImportAlias) -> cst.AsName:
    return alias.asname or cst.AsName(cst.Name(str(alias.name.value)))
