"""The syntax tree of a script.

What lives here: words (literal text, parameters, substitutions) and commands. What does not: reading them from text
(`parser`) and what they do (`interpreter`).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Literal:
    """Text as it stands."""

    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$name`, `${name[index]operator argument}`; `operator` is `#` in front for the length and `!` for indirection."""

    name: str
    quoted: bool = False
    index: Word | None = None
    prefix: str = ""
    operator: str = ""
    arguments: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class Substitution:
    """`$(program)`, with its text for the case that nobody knows what it prints."""

    program: Program
    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`$((expression))`."""

    expression: Word
    quoted: bool = False


Part = Literal | Parameter | Substitution | Arithmetic
Word = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name=word`, `name+=word`, `name[index]=word` or, with a list of words, `name=(...)`."""

    name: str
    value: Word | list[Word]
    append: bool = False
    index: Word | None = None


@dataclass(frozen=True, slots=True)
class Redirect:
    """Input or output of a command; `body` is the text of a here-document or here-string."""

    operator: str
    target: Word
    body: Word | None = None


@dataclass(slots=True)
class Simple:
    """Assignments, and a command if there are words."""

    assignments: list[Assignment]
    words: list[Word]
    redirects: list[Redirect]
    line: int


@dataclass(slots=True)
class Pipeline:
    """`command | command`, after `!` negated."""

    commands: list[Command]
    negated: bool = False


@dataclass(slots=True)
class AndOr:
    """Pipelines joined by `&&` and `||`; `operators[i]` stands before `pipelines[i + 1]`."""

    pipelines: list[Pipeline]
    operators: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Program:
    """A sequence of statements."""

    statements: list[AndOr]


@dataclass(slots=True)
class If:
    """`if`/`elif` branches in order, and what follows `else`."""

    branches: list[tuple[Program, Program]]
    otherwise: Program | None


@dataclass(slots=True)
class For:
    """`for name in words`; without `in` over the script's arguments."""

    name: str
    words: list[Word] | None
    body: Program


@dataclass(slots=True)
class CountingFor:
    """`for ((start; condition; step))`."""

    start: Word
    condition: Word
    step: Word
    body: Program


@dataclass(slots=True)
class While:
    """`while`, or `until` with `negated`."""

    condition: Program
    body: Program
    negated: bool


@dataclass(slots=True)
class Case:
    """`case subject in patterns) body ;; esac`."""

    subject: Word
    items: list[tuple[list[Word], Program]]


@dataclass(slots=True)
class Group:
    """`{ ...; }`, or `( ... )` as a subshell."""

    body: Program
    subshell: bool


@dataclass(slots=True)
class Function:
    """A function's definition."""

    name: str
    body: Command


@dataclass(slots=True)
class ArithmeticCommand:
    """`((expression))`."""

    expression: Word


@dataclass(slots=True)
class Conditional:
    """`[[ ... ]]`; operators are words of one literal."""

    words: list[Word]


Command = Simple | If | For | CountingFor | While | Case | Group | Function | ArithmeticCommand | Conditional
