"""What a script would do: its commands with every word expanded.

What lives here: control flow, assignments and the commands that change what follows (`source`, `cd`, `shift`, ...).
What does not: processes. No command of the script is run, and no file is opened but those it sources.

Where a branch depends on something unknown (a file, the machine, a variable that nobody set), the `else` side is taken.
A branch that would end the script because a variable is unset is left out: the script is read as if it were set.
"""

from __future__ import annotations

import contextlib
import posixpath
from pathlib import Path

from relax_engine.migrate.errors import MigrationError
from relax_engine.migrate.shell import pure
from relax_engine.migrate.shell.arithmetic import UnknownNumberError
from relax_engine.migrate.shell.assign import assign, restore
from relax_engine.migrate.shell.conditions import UndecidedError, test
from relax_engine.migrate.shell.expand import Expander, Variables
from relax_engine.migrate.shell.parser import parse
from relax_engine.migrate.shell.symbols import is_known, render
from relax_engine.migrate.shell.syntax import (
    AndOr,
    ArithmeticCommand,
    Case,
    Command,
    Conditional,
    CountingFor,
    For,
    Function,
    Group,
    If,
    Literal,
    Pipeline,
    Program,
    Redirect,
    Simple,
    While,
    Word,
)
from relax_engine.migrate.shell.trace import ExitScript, Invocation, LoopControl, ReturnFromFunction, Trace

_MOST_STEPS = 200_000
_DEEPEST = 40
_DECLARATIONS = ("export", "local", "declare", "readonly", "typeset")


class Interpreter:
    """Evaluates programs over `variables`, in `directory`; commands go to `trace`."""

    def __init__(self, trace: Trace, variables: Variables, directory: str, depth: int = 0) -> None:
        """Begin with nothing run."""
        self.trace, self.variables, self.directory = trace, variables, directory
        self.functions: dict[str, Command] = {}
        self.expander = Expander(variables, self._captured)
        self.depth = depth
        self.steps = 0
        self.script = ""
        self.unsure = False

    def run_file(self, path: Path) -> None:
        """Evaluate a script, in the script that sources it if there is one."""
        try:
            text = path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
        except OSError as error:
            raise MigrationError(f"{path}: {error.strerror or error}") from error
        outer, self.script = self.script, str(path)
        saved = self.variables.arrays.get("BASH_SOURCE"), self.variables.scalars.get("0")
        self.variables.arrays["BASH_SOURCE"] = [str(path)]
        self.variables.scalars["0"] = str(path)
        with contextlib.suppress(ExitScript, ReturnFromFunction):
            self.program(parse(text, str(path)))
        self.script = outer
        if saved[0] is not None:
            self.variables.arrays["BASH_SOURCE"] = saved[0]
        if saved[1] is not None:
            self.variables.scalars["0"] = saved[1]

    def program(self, program: Program) -> int | None:
        """Run the statements; the last one's status, None where it is unknown."""
        status: int | None = 0
        for statement in program.statements:
            status = self._and_or(statement)
        return status

    def _and_or(self, statement: AndOr) -> int | None:
        status = self._pipeline(statement.pipelines[0])
        for operator, pipeline in zip(statement.operators, statement.pipelines[1:], strict=True):
            if operator == "&&" and status in (0, None):
                status = self._pipeline(pipeline)
            elif operator == "||" and status is not None and status != 0:
                status = self._guarded(pipeline)
        return status

    def _guarded(self, pipeline: Pipeline) -> int | None:
        """The right side of `||`: an exit there means that what it asks for is assumed."""
        try:
            return self._pipeline(pipeline)
        except ExitScript:
            if self.unsure:
                return None
            raise

    def _pipeline(self, pipeline: Pipeline) -> int | None:
        if len(pipeline.commands) == 1:
            status = self._command(pipeline.commands[0])
        else:
            for command in pipeline.commands:
                self._subshell([command])
            status = None
        if pipeline.negated and status is not None:
            return int(not status)
        return status

    def _command(self, command: Command) -> int | None:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise MigrationError(f"{self.script}: more than {_MOST_STEPS} commands; does it loop without end?")
        match command:
            case Simple():
                return self._simple(command)
            case If():
                return self._if(command)
            case For():
                words = command.words
                items = (self.variables.arguments or []) if words is None else self._fields(words)
                return self._loop(command.name, items, command.body)
            case CountingFor():
                return self._counting(command)
            case While():
                return self._while(command)
            case Case():
                return self._case(command)
            case Group(subshell=True):
                return self._subshell(list(command.body.statements))
            case Group():
                return self.program(command.body)
            case Function():
                self.functions[command.name] = command.body
                return 0
            case ArithmeticCommand():
                return self._arithmetic(command.expression)
            case Conditional():
                return self._test([self._condition_word(word) for word in command.words])

    # --- control flow ------------------------------------------------------------------------------------------------

    def _if(self, command: If) -> int | None:
        for condition, body in command.branches:
            before, self.unsure = self.unsure, False
            status = self.program(condition)
            unsure, self.unsure = self.unsure or status is None, before
            if status != 0:
                continue
            try:
                return self.program(body)
            except ExitScript:
                if unsure:
                    return None
                raise
        if command.otherwise is None:
            return 0
        try:
            return self.program(command.otherwise)
        except ExitScript:
            return None

    def _loop(self, name: str, items: list[str], body: Program) -> int | None:
        for item in items:
            if is_known(item) or "$(" not in item:
                self.variables.assign(name, item)
                if not self._body(body):
                    break
        return 0

    def _body(self, body: Program) -> bool:
        try:
            self.program(body)
        except LoopControl as control:
            return control.again
        return True

    def _counting(self, command: CountingFor) -> int | None:
        try:
            self.expander.number(command.start)
            while not command.condition or self.expander.number(command.condition):
                if not self._body(command.body):
                    break
                self.expander.number(command.step)
                self.steps += 1
                if self.steps > _MOST_STEPS:
                    raise MigrationError(f"{self.script}: a for loop does not end")
        except UnknownNumberError:
            return None
        return 0

    def _while(self, command: While) -> int | None:
        for _ in range(_MOST_STEPS):
            status = self.program(command.condition)
            if status is None or (status == 0) == command.negated:
                return 0
            if not self._body(command.body):
                return 0
        raise MigrationError(f"{self.script}: a while loop does not end")

    def _case(self, command: Case) -> int | None:
        subject = self.expander.text(command.subject)
        for patterns, body in command.items:
            for pattern in patterns:
                wanted = self.expander.text(pattern)
                if wanted == "*" or (is_known(subject) and self._test([subject, "=", wanted]) == 0):
                    try:
                        return self.program(body)
                    except ExitScript:
                        if is_known(subject):
                            raise
                        return None
        return 0

    def _arithmetic(self, expression: Word) -> int | None:
        try:
            return int(self.expander.number(expression) == 0)
        except UnknownNumberError:
            self.unsure = True
            return None

    def _test(self, words: list[str]) -> int | None:
        try:
            return int(not test(words))
        except UndecidedError:
            self.unsure = True
            return 1

    def _condition_word(self, word: Word) -> str:
        self.expander.lenient, self.expander.unsure = True, False
        result = self.expander.text(word)
        self.expander.lenient = False
        self.unsure = self.unsure or self.expander.unsure
        return result

    # --- commands ----------------------------------------------------------------------------------------------------

    def _fields(self, words: list[Word]) -> list[str]:
        return [field for word in words for field in self.expander.fields(word)]

    def _simple(self, command: Simple) -> int | None:
        first = command.words[0] if command.words else ()
        if first in ((Literal("["),), (Literal("test"),)):
            words = [self._condition_word(word) for word in command.words[1:]]
            return self._test(words[:-1] if first == (Literal("["),) else words)
        argv = self._fields(command.words)
        if not argv or argv[0] in _DECLARATIONS:
            for assignment in command.assignments:
                assign(self.variables, self.expander, assignment)
            return 0
        saved = self.variables.copy() if command.assignments else None
        for assignment in command.assignments:
            assign(self.variables, self.expander, assignment)
        status = self._invoke(argv, command)
        if saved is not None:
            for assignment in command.assignments:
                restore(self.variables, assignment.name, saved)
        return status

    def _invoke(self, argv: list[str], command: Simple) -> int | None:
        name = argv[0]
        if name in self.functions:
            return self._call(name, argv[1:])
        match name:
            case "exit":
                raise ExitScript
            case "return":
                given = argv[1] if len(argv) > 1 else "0"
                raise ReturnFromFunction(int(given) if given.isdigit() else None)
            case "break" | "continue":
                raise LoopControl(again=name == "continue")
            case "true" | ":" | "set" | "shopt" | "ulimit" | "trap" | "wait" | "umask":
                return 0
            case "false":
                return 1
            case "source" | ".":
                return self._source(argv[1:])
            case "cd":
                return self._change_directory(argv[1:])
            case "shift":
                count = int(argv[1]) if len(argv) > 1 and argv[1].isdigit() else 1
                if self.variables.arguments is not None:
                    del self.variables.arguments[:count]
                return 0
            case "unset":
                for variable in argv[1:]:
                    self.variables.scalars.pop(variable, None)
                    self.variables.arrays.pop(variable, None)
                return 0
            case "printf" if argv[1:2] == ["-v"] and len(argv) > 3:
                self.variables.assign(argv[2], pure.formatted(argv[3:]))
                return 0
            case "bash" | "sh" if "-c" in argv and len(argv) > argv.index("-c") + 1:
                return self._nested(argv[argv.index("-c") + 1])
        self.trace.invocations.append(Invocation(tuple(argv), self.script, command.line))
        return 0 if pure.output(argv, "", self.directory) is not None else None

    def _call(self, name: str, arguments: list[str]) -> int | None:
        if self.depth >= _DEEPEST:
            raise MigrationError(f"{self.script}: function {name} calls itself without end")
        saved, self.variables.arguments = self.variables.arguments, arguments
        self.depth += 1
        try:
            return self._command(self.functions[name])
        except ReturnFromFunction as returned:
            return returned.status
        finally:
            self.depth -= 1
            self.variables.arguments = saved

    def _source(self, arguments: list[str]) -> int | None:
        if not arguments:
            return None
        path = Path(posixpath.join(self.directory, arguments[0]))
        if not is_known(arguments[0]) or not path.is_file():
            self.trace.missing.append(render(arguments[0]))
            return None
        if self.depth >= _DEEPEST:
            raise MigrationError(f"{self.script}: {path} sources itself")
        self.depth += 1
        saved = self.variables.arguments
        if len(arguments) > 1:
            self.variables.arguments = arguments[1:]
        self.run_file(path)
        self.variables.arguments = saved
        self.depth -= 1
        return 0

    def _change_directory(self, arguments: list[str]) -> int | None:
        targets = [argument for argument in arguments if not argument.startswith("-")]
        target = targets[0] if targets else "/"
        if is_known(target):
            self.directory = posixpath.normpath(posixpath.join(self.directory, target))
        return 0

    def _nested(self, text: str) -> int | None:
        try:
            program = parse(render(text), f"{self.script}, text after -c")
        except MigrationError:
            return None
        return self._subshell(list(program.statements))

    # --- subshells ---------------------------------------------------------------------------------------------------

    def _child(self, trace: Trace) -> Interpreter:
        if self.depth >= _DEEPEST:
            raise MigrationError(f"{self.script}: subshells nest deeper than {_DEEPEST}")
        child = Interpreter(trace, self.variables.copy(), self.directory, self.depth + 1)
        child.functions, child.script, child.steps = dict(self.functions), self.script, self.steps
        child.expander.lenient = self.expander.lenient
        return child

    def _subshell(self, statements: list[AndOr] | list[Command]) -> int | None:
        child = self._child(self.trace)
        status: int | None = 0
        try:
            for statement in statements:
                status = child._and_or(statement) if isinstance(statement, AndOr) else child._command(statement)
        except (ExitScript, ReturnFromFunction):
            status = None
        self.steps = child.steps
        return status

    def _captured(self, program: Program) -> str | None:
        """What a command substitution prints, if it only computes text."""
        child = self._child(Trace())
        printed: list[str] = []
        try:
            for statement in program.statements:
                text = child._statement_output(statement)
                if text is None:
                    return None
                printed.append(text)
        except (ExitScript, ReturnFromFunction, LoopControl):
            return None
        return "".join(printed)

    def _statement_output(self, statement: AndOr) -> str | None:
        printed = ""
        for operator, pipeline in zip(["&&", *statement.operators], statement.pipelines, strict=True):
            if operator == "||":
                continue
            stdin: str | None = None
            for command in pipeline.commands:
                stdin = self._output(command, stdin)
                if stdin is None:
                    return None
            printed += stdin or ""
        return printed

    def _output(self, command: Command, stdin: str | None) -> str | None:
        if not isinstance(command, Simple):
            return None
        argv = self._fields(command.words)
        if not argv or argv[0] in ("cd", *_DECLARATIONS):
            self._simple(command)
            return ""
        body = next((redirect.body for redirect in command.redirects if _is_here(redirect)), None)
        return pure.output(argv, self.expander.text(body) if body is not None else stdin, self.directory)


def _is_here(redirect: Redirect) -> bool:
    return redirect.operator == "<<" and redirect.body is not None
