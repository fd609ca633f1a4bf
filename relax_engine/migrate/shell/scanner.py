"""Words of a script: quotes, parameters and substitutions.

What lives here: everything below the level of commands. What does not: commands (`parser`).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

from relax_engine.migrate.errors import MigrationError
from relax_engine.migrate.shell.syntax import Arithmetic, Literal, Parameter, Part, Program, Substitution, Word

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATORS = (":-", ":=", ":+", ":?", "##", "%%", "//", "/#", "/%", ",,", "^^", "-", "=", "+", "?", "#", "%", "/")
_CASES = (",", "^")
_ENDS = " \t\n;&|<>()"


class Scanner:
    """A position in a script's text; `parse_program` reads the inside of a command substitution."""

    def __init__(self, text: str, name: str, parse_program: Callable[[str, str], Program]) -> None:
        """Begin at the start of `text`; `name` is the script's, for errors."""
        self.text = text
        self.name = name
        self.position = 0
        self._parse_program = parse_program

    @property
    def line(self) -> int:
        """Number of the present line, from 1."""
        return self.text.count("\n", 0, self.position) + 1

    def error(self, message: str) -> MigrationError:
        """An error at the present position."""
        return MigrationError(f"{self.name}, line {self.line}: {message}")

    def peek(self, text: str) -> bool:
        """Whether `text` comes next."""
        return self.text.startswith(text, self.position)

    def take(self, text: str) -> bool:
        """Step over `text` if it comes next."""
        if not self.peek(text):
            return False
        self.position += len(text)
        return True

    @property
    def at_end(self) -> bool:
        """Whether the text is used up."""
        return self.position >= len(self.text)

    def word(self, ends: str = _ENDS) -> Word:
        """The word at this position, up to an unquoted character of `ends`; empty if there is none."""
        parts: list[Part] = []
        while not self.at_end and self.text[self.position] not in ends:
            if self.take("\\\n"):
                continue
            parts.extend(self._part(ends))
        return tuple(parts)

    def quoted_text(self, end: str) -> Word:
        """Text up to `end` in which only `$`, backquotes and backslashes are special; steps over `end`."""
        parts: list[Part] = []
        start = self.position
        while not self.take(end) if end else not self.at_end:
            if self.at_end:
                self.position = start
                raise self.error(f"nothing closes this {end}")
            parts.append(self._inside_quotes())
        return tuple(parts) or (Literal("", quoted=True),)

    def balanced(self, opening: str, closing: str) -> str:
        """The text up to the `closing` that matches an `opening` just stepped over; quotes are minded."""
        start, depth = self.position, 1
        while depth:
            if self.at_end:
                self.position = start
                raise self.error(f"nothing closes this {opening}")
            character = self.text[self.position]
            if character == "\\":
                self.position += 1
            elif character in "'\"":
                self._skip_quoted(character)
            elif character == "#" and self.text[self.position - 1] in " \t\n" and opening == "(":
                self.position = self._end_of_line() - 1
            elif character == opening:
                depth += 1
            elif character == closing:
                depth -= 1
            self.position += 1
        return self.text[start : self.position - 1]

    def _end_of_line(self) -> int:
        end = self.text.find("\n", self.position)
        return len(self.text) if end < 0 else end

    def _skip_quoted(self, mark: str) -> None:
        while True:
            self.position += 1
            if self.at_end:
                raise self.error(f"nothing closes a {mark}")
            character = self.text[self.position]
            if character == mark:
                return
            if mark == '"':
                if character == "\\":
                    self.position += 1
                elif self.peek("$("):
                    self.position += 2
                    self.balanced("(", ")")
                    self.position -= 1

    def _part(self, ends: str) -> list[Part]:
        character = self.text[self.position]
        if character == "'":
            return [Literal(self._until("'", 1), quoted=True)]
        if self.peek("$'"):
            return [Literal(_unescape(self._until_unescaped("'", 2)), quoted=True)]
        if character == '"' or self.peek('$"'):
            self.position += 1 if character == '"' else 2
            return list(self.quoted_text('"'))
        if character == "\\":
            self.position += 2
            return [Literal(self.text[self.position - 1 : self.position], quoted=True)]
        if character in "$`":
            return [self._expansion(quoted=False)]
        start = self.position
        while not self.at_end and self.text[self.position] not in "'\"\\$`" + ends:
            self.position += 1
        return [Literal(self.text[start : self.position])]

    def _inside_quotes(self) -> Part:
        character = self.text[self.position]
        if character == "\\":
            following = self.text[self.position + 1 : self.position + 2]
            self.position += 2
            if following == "\n":
                return Literal("", quoted=True)
            return Literal(following if following in '$`"\\' else "\\" + following, quoted=True)
        if character in "$`":
            return self._expansion(quoted=True)
        self.position += 1
        return Literal(character, quoted=True)

    def _until(self, end: str, skip: int) -> str:
        start = self.position + skip
        stop = self.text.find(end, start)
        if stop < 0:
            raise self.error(f"nothing closes this {end}")
        self.position = stop + 1
        return self.text[start:stop]

    def _until_unescaped(self, end: str, skip: int) -> str:
        match = re.compile(rf"((?:[^\\{end}]|\\.)*){end}", re.DOTALL).match(self.text, self.position + skip)
        if match is None:
            raise self.error(f"nothing closes this {end}")
        self.position = match.end()
        return match.group(1)

    def _expansion(self, *, quoted: bool) -> Part:
        if self.take("$(("):
            start = self.position
            inner = self.balanced("(", ")")
            if self.take(")"):
                return Arithmetic(self.nested_word(inner), quoted)
            self.position = start - 1
            return self._substitution(self.balanced("(", ")"), quoted)
        if self.take("$("):
            return self._substitution(self.balanced("(", ")"), quoted)
        if self.take("${"):
            return self._braced(quoted)
        if self.take("`"):
            return self._substitution(self._until_unescaped("`", 0).replace("\\`", "`"), quoted)
        self.position += 1
        match = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!_-]").match(self.text, self.position)
        if match is None:
            return Literal("$", quoted)
        self.position = match.end()
        return Parameter(match.group(), quoted)

    def _substitution(self, text: str, quoted: bool) -> Part:
        return Substitution(self._parse_program(text, self.name), text.strip(), quoted)

    def nested_word(self, text: str) -> Word:
        """`text` read as if it stood between double quotes."""
        return Scanner(text, self.name, self._parse_program).quoted_text("") if text else ()

    def _braced(self, quoted: bool) -> Part:
        prefix = ""
        if self.text[self.position] in "#!" and self.text[self.position + 1 : self.position + 2] not in "}":
            prefix = self.text[self.position]
            self.position += 1
        match = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]").match(self.text, self.position)
        if match is None:
            raise self.error("there is no name in ${}")
        self.position = match.end()
        index = self.nested_word(self.balanced("[", "]")) if self.take("[") else None
        operator, arguments = self._operator()
        if not self.take("}"):
            raise self.error(f"cannot read the expansion of {match.group()}")
        return Parameter(match.group(), quoted, index, prefix, operator, arguments)

    def _operator(self) -> tuple[str, tuple[Word, ...]]:
        for operator in _OPERATORS:
            if self.take(operator):
                if operator[0] == "/":
                    pattern = self.word("/}")
                    return operator, (pattern, self.word("}") if self.take("/") else ())
                return operator, (self.word("}"),)
        for operator in _CASES:
            if self.take(operator):
                return operator, (self.word("}"),)
        if self.take(":"):
            offset = self.word(":}")
            return ":", (offset, self.word("}")) if self.take(":") else (offset,)
        return "", ()


def name_at(text: str) -> str:
    """The variable name that `text` begins with, or an empty string."""
    match = _NAME.match(text)
    return match.group() if match else ""


def _unescape(text: str) -> str:
    return codecs.decode(text.encode("latin-1", "backslashreplace"), "unicode_escape")
