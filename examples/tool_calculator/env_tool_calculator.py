"""The environment: a calculator that the model calls, for at most `max_turns` answers.

The tool has verl's methods, as a recipe brings them that comes from there.
"""

from __future__ import annotations

import operator
import re
from typing import Any

from relax_engine.rollout.tools import Tool, ToolEnvironment, ToolLimits, ToolResponse, ToolSchema

_EXPRESSION = re.compile(r"\s*(\d{1,6})\s*([-+*])\s*(\d{1,6})\s*")
_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
SCHEMA = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Add, subtract or multiply two whole numbers.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


class Calculator(Tool):
    """Works out `a+b`, `a-b` or `a*b`; anything else is answered by `error`."""

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Answer a call."""
        return ToolResponse(calculate(str(parameters.get("expression", "")))), 0.0, {}


def calculate(expression: str) -> str:
    """The value of `a+b`, `a-b` or `a*b`, or `error`."""
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        return "error"
    return str(_OPERATORS[match[2]](int(match[1]), int(match[3])))


def build_env(sample: Any = None, args: Any = None, **_: Any) -> ToolEnvironment:
    """What the turns of one sample act on."""
    tool = Calculator({}, ToolSchema.model_validate(SCHEMA))
    return ToolEnvironment([tool], ToolLimits.from_args(args), sample)
