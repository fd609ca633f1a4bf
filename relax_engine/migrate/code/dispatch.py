"""A dispatch over `data_source`, cut down to the branch of one.

What lives here: tests of the forms `data_source == "a"`, `data_source in [...]`, `data_source.startswith("a")`, and
`and` and `or` of them. What does not: any other rewriting (`transform`).
"""

from __future__ import annotations

import ast
from typing import Any

import libcst as cst

from relax_engine.migrate.code.transform import dotted


class OneSource(cst.CSTTransformer):
    """Keeps what a module does for `data_source`."""

    def __init__(self, data_source: str) -> None:
        """Cut down to one data source."""
        super().__init__()
        self.data_source = data_source
        self._alternatives: list[cst.If] = []

    def visit_If(self, node: cst.If) -> None:
        """Remember `elif` branches, which are no statements of their own."""
        if isinstance(node.orelse, cst.If):
            self._alternatives.append(node.orelse)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        """Replace a decided `if` by its branch; a decided `elif` waits for the `if` above it."""
        known = _truth(updated_node.test, self.data_source)
        if known is None:
            return updated_node
        chosen: cst.CSTNode | None = updated_node.body if known else updated_node.orelse
        if isinstance(chosen, cst.If):
            return chosen
        if isinstance(chosen, cst.Else):
            chosen = chosen.body
        if original_node in self._alternatives:
            return cst.Else(body=chosen) if isinstance(chosen, cst.BaseSuite) else cst.RemoveFromParent()
        if isinstance(chosen, cst.IndentedBlock):
            return cst.FlattenSentinel(list(chosen.body))
        return cst.RemoveFromParent() if chosen is None else updated_node


def _truth(test: cst.BaseExpression, data_source: str) -> bool | None:
    """The value of a test over `data_source` alone, else None."""
    if isinstance(test, cst.BooleanOperation):
        left, right = _truth(test.left, data_source), _truth(test.right, data_source)
        if isinstance(test.operator, cst.Or):
            return True if True in (left, right) else None if None in (left, right) else False
        return False if False in (left, right) else None if None in (left, right) else True
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1 and dotted(test.left) == "data_source":
        operator, value = test.comparisons[0].operator, _constant(test.comparisons[0].comparator)
        if isinstance(operator, cst.Equal) and isinstance(value, str):
            return data_source == value
        if isinstance(operator, cst.In) and isinstance(value, list | tuple | set):
            return data_source in value
    if isinstance(test, cst.Call) and dotted(test.func) == "data_source.startswith" and len(test.args) == 1:
        value = _constant(test.args[0].value)
        return data_source.startswith(value) if isinstance(value, str) else None
    return None


def _constant(node: cst.BaseExpression) -> Any:
    try:
        return ast.literal_eval(cst.Module([]).code_for_node(node))
    except (ValueError, SyntaxError):
        return None
