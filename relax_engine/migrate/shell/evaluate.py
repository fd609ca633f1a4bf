"""Evaluating a script file, a command, or a word.

What lives here: the ways into the interpreter. What does not: the interpreter.
"""

from __future__ import annotations

from pathlib import Path

from relax_engine.migrate.shell.expand import Variables
from relax_engine.migrate.shell.interpreter import Interpreter
from relax_engine.migrate.shell.parser import parse
from relax_engine.migrate.shell.scanner import Scanner
from relax_engine.migrate.shell.trace import Trace


def evaluate(path: Path, *, arguments: list[str] | None = None, directory: Path | None = None) -> Trace:
    """Evaluate a script file as if it were started in `directory` (its own by default) with `arguments`.

    Raises:
        MigrationError: the file cannot be read or parsed, or loops without end.
    """
    trace = Trace()
    trace.variables.arguments = arguments
    start = directory if directory is not None else path.resolve().parent
    interpreter = Interpreter(trace, trace.variables, str(start.resolve()))
    interpreter.run_file(path.resolve())
    return trace


def evaluate_text(text: str, variables: Variables) -> Trace:
    """Evaluate commands that are not in a file, with these variables.

    Raises:
        MigrationError: text that is not understood.
    """
    trace = Trace(variables=variables)
    Interpreter(trace, variables, ".").program(parse(text, "a command"))
    return trace


def expand_text(text: str, variables: Variables) -> str:
    """The value of `text` as if it stood between double quotes in a script that has assigned `variables`."""
    word = Scanner(text, "a setting", parse).quoted_text("")
    return Interpreter(Trace(), variables, ".").expander.text(word)
