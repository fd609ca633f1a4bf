"""Commands of a script, by recursive descent.

What lives here: statements and compound commands. What does not: words (`scanner`), and meaning (`interpreter`).
"""

from __future__ import annotations

import re

from relax_engine.migrate.shell.scanner import Scanner, name_at
from relax_engine.migrate.shell.syntax import (
    AndOr,
    ArithmeticCommand,
    Assignment,
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

_REDIRECT = re.compile(r"(?:[0-9]+|&)?(?:<<<|<<-?|>>|>&|<&|>\||<>|&>>|&>|>|<)")
_FUNCTION = re.compile(
    r"(?:function[ \t]+([A-Za-z_][\w-]*)[ \t]*(?:\([ \t]*\))?|([A-Za-z_][\w-]*)[ \t]*\([ \t]*\))\s*(?=[{(])"
)
_KEYWORDS = {"then", "elif", "else", "fi", "do", "done", "esac", "}"}


def parse(text: str, name: str) -> Program:
    """The syntax tree of a script; `name` is said in errors.

    Raises:
        MigrationError: text that is not understood, with the line.
    """
    parser = _Parser(text, name)
    program = parser.program(())
    if not parser.scanner.at_end:
        raise parser.scanner.error(f"unexpected {text[parser.scanner.position : parser.scanner.position + 12]!r}")
    return program


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self.scanner = Scanner(text, name, parse)
        self._heredocs: list[tuple[Redirect, str, bool, list[Redirect]]] = []

    def program(self, ends: tuple[str, ...]) -> Program:
        statements: list[AndOr] = []
        while True:
            self._blanks()
            if self.scanner.at_end or self._at(ends):
                return Program(statements)
            statements.append(self._and_or())
            self._spaces()
            if not (self.scanner.peek(";;") or self.scanner.take(";") or self._take_background()) and not (
                self.scanner.at_end or self.scanner.peek("\n") or self.scanner.peek(")")
            ):
                rest = self.scanner.text[self.scanner.position :][:20]
                raise self.scanner.error(f"a command goes on with {rest!r}, which is not understood")

    def _take_background(self) -> bool:
        return not self.scanner.peek("&&") and self.scanner.take("&")

    def _at(self, ends: tuple[str, ...]) -> bool:
        return any(self.scanner.peek(end) if not end[0].isalpha() else self._keyword() == end for end in ends)

    def _keyword(self) -> str:
        match = re.compile(r"[A-Za-z_]+(?=$|[\s;&|()<>])|[{}!](?=$|[\s;&|)])").match(
            self.scanner.text, self.scanner.position
        )
        return match.group() if match else ""

    def _spaces(self) -> None:
        scanner = self.scanner
        while not scanner.at_end:
            if scanner.take("\\\n") or scanner.take("\\\r\n"):
                continue
            character = scanner.text[scanner.position]
            if character in " \t\r":
                scanner.position += 1
            elif character == "#":
                end = scanner.text.find("\n", scanner.position)
                scanner.position = len(scanner.text) if end < 0 else end
            else:
                return

    def _blanks(self) -> None:
        while True:
            self._spaces()
            if not self.scanner.take("\n"):
                return
            self._read_heredocs()

    def _read_heredocs(self) -> None:
        for redirect, end, raw, destination in self._heredocs:
            lines: list[str] = []
            scanner = self.scanner
            while not scanner.at_end:
                stop = scanner.text.find("\n", scanner.position)
                stop = len(scanner.text) if stop < 0 else stop
                line = scanner.text[scanner.position : stop]
                scanner.position = min(stop + 1, len(scanner.text))
                if (line.lstrip("\t") if redirect.operator.endswith("-") else line).rstrip("\r") == end:
                    break
                lines.append(line + "\n")
            text = "".join(lines)
            body: Word = (
                (Literal(text, quoted=True),)
                if raw
                else Scanner(text, scanner.name, parse).quoted_text("")
                if text
                else ()
            )
            destination.append(Redirect("<<", (), body))
        self._heredocs = []

    def _and_or(self) -> AndOr:
        result = AndOr([self._pipeline()])
        while True:
            self._spaces()
            operator = "&&" if self.scanner.take("&&") else "||" if self.scanner.take("||") else ""
            if not operator:
                return result
            self._blanks()
            result.operators.append(operator)
            result.pipelines.append(self._pipeline())

    def _pipeline(self) -> Pipeline:
        negated = self._keyword() == "!"
        if negated:
            self.scanner.take("!")
            self._spaces()
        commands = [self._command()]
        self._spaces()
        while self.scanner.peek("|") and not self.scanner.peek("||"):
            self.scanner.take("|&") or self.scanner.take("|")
            self._blanks()
            commands.append(self._command())
            self._spaces()
        return Pipeline(commands, negated)

    def _command(self) -> Command:
        command = self._compound()
        if command is None:
            return self._simple()
        redirects: list[Redirect] = []
        self._spaces()
        while self._take_redirect(redirects):
            self._spaces()
        return command

    def _compound(self) -> Command | None:
        scanner = self.scanner
        if scanner.peek("(("):
            scanner.position += 2
            inner = scanner.balanced("(", ")")
            scanner.take(")")
            return ArithmeticCommand(scanner.nested_word(inner))
        if scanner.take("("):
            body = self.program((")",))
            self._expect(")")
            return Group(body, subshell=True)
        function = _FUNCTION.match(scanner.text, scanner.position)
        if function:
            scanner.position = function.end()
            return Function(function.group(1) or function.group(2), self._command())
        keyword = self._keyword()
        if scanner.peek("[[") and scanner.text[scanner.position + 2 : scanner.position + 3] in " \t\n":
            return self._conditional()
        readers = {"if": self._if, "for": self._for, "while": self._while, "until": self._while, "case": self._case}
        if keyword in readers:
            scanner.position += len(keyword)
            self._spaces()
            return self._while(negated=True) if keyword == "until" else readers[keyword]()
        if keyword == "{":
            scanner.take("{")
            body = self.program(("}",))
            self._expect("}")
            return Group(body, subshell=False)
        if keyword in _KEYWORDS:
            raise scanner.error(f"{keyword} without a beginning")
        return None

    def _expect(self, text: str) -> None:
        self._blanks()
        if not (self._keyword() == text if text.isalpha() else self.scanner.peek(text)):
            found = self.scanner.text[self.scanner.position :][:12]
            raise self.scanner.error(f"expected {text!r}, found {found!r}")
        self.scanner.position += len(text)

    def _if(self) -> Command:
        branches: list[tuple[Program, Program]] = []
        while True:
            condition = self.program(("then",))
            self._expect("then")
            branches.append((condition, self.program(("elif", "else", "fi"))))
            if self._keyword() != "elif":
                break
            self._expect("elif")
        otherwise = None
        if self._keyword() == "else":
            self._expect("else")
            otherwise = self.program(("fi",))
        self._expect("fi")
        return If(branches, otherwise)

    def _for(self) -> Command:
        scanner = self.scanner
        if scanner.take("(("):
            parts = [*scanner.balanced("(", ")").split(";"), "", ""]
            scanner.take(")")
            start, condition, step = (scanner.nested_word(part.strip()) for part in parts[:3])
            return CountingFor(start, condition, step, self._loop_body())
        name = name_at(scanner.text[scanner.position :])
        scanner.position += len(name)
        self._blanks()
        words: list[Word] | None = None
        if self._keyword() == "in":
            self._expect("in")
            words = self._words()
        return For(name, words, self._loop_body())

    def _loop_body(self) -> Program:
        self._spaces()
        self.scanner.take(";")
        self._expect("do")
        body = self.program(("done",))
        self._expect("done")
        return body

    def _while(self, *, negated: bool = False) -> Command:
        condition = self.program(("do",))
        return While(condition, self._loop_body(), negated)

    def _case(self) -> Command:
        subject = self.scanner.word()
        self._expect("in")
        items: list[tuple[list[Word], Program]] = []
        self._blanks()
        while self._keyword() != "esac":
            self.scanner.take("(")
            patterns: list[Word] = []
            while True:
                self._spaces()
                patterns.append(self.scanner.word())
                self._spaces()
                if not self.scanner.take("|"):
                    break
            self._expect(")")
            items.append((patterns, self.program((";;", "esac"))))
            self._blanks()
            self.scanner.take(";;")
            self._blanks()
        self._expect("esac")
        return Case(subject, items)

    def _conditional(self) -> Command:
        scanner = self.scanner
        scanner.position += 2
        words: list[Word] = []
        while True:
            self._blanks()
            if scanner.at_end:
                raise scanner.error("nothing closes this [[")
            if scanner.peek("]]"):
                scanner.position += 2
                return Conditional(words)
            operator = next((text for text in ("&&", "||", "(", ")", "<", ">") if scanner.peek(text)), None)
            if operator:
                scanner.position += len(operator)
                words.append((Literal(operator),))
                continue
            after_match = bool(words) and words[-1] == (Literal("=~"),)
            words.append(scanner.word(" \t\n" if after_match else " \t\n;&|<>()"))
            if not words[-1]:
                raise scanner.error("cannot read this [[ ]]")

    def _words(self) -> list[Word]:
        words: list[Word] = []
        while True:
            self._spaces()
            word = self._word()
            if word is None:
                return words
            words.append(word)

    def _word(self) -> Word | None:
        scanner = self.scanner
        if scanner.peek("<(") or scanner.peek(">("):
            scanner.position += 2
            return (Literal(f"<({scanner.balanced('(', ')')})", quoted=True),)
        return scanner.word() or None

    def _simple(self) -> Simple:
        scanner = self.scanner
        command = Simple([], [], [], scanner.line)
        while True:
            self._spaces()
            if self._take_redirect(command.redirects):
                continue
            assignment = self._assignment() if self._may_assign(command) else None
            if assignment is not None:
                command.assignments.append(assignment)
                continue
            word = self._word()
            if word is None:
                break
            command.words.append(word)
        if not (command.assignments or command.words or command.redirects):
            raise scanner.error(f"cannot read {scanner.text[scanner.position :][:12]!r}")
        return command

    @staticmethod
    def _may_assign(command: Simple) -> bool:
        """Before the command's name, or after `export` and its like, whose arguments assign too."""
        first = command.words[0] if command.words else ()
        declares = first in {(Literal(word),) for word in ("export", "local", "declare", "readonly", "typeset")}
        return not command.words or declares

    def _assignment(self) -> Assignment | None:
        scanner = self.scanner
        match = re.compile(r"([A-Za-z_]\w*)(\[)?").match(scanner.text, scanner.position)
        if match is None:
            return None
        start = scanner.position
        scanner.position = match.end()
        index = scanner.nested_word(scanner.balanced("[", "]")) if match.group(2) else None
        append = scanner.take("+=")
        if not append and not scanner.take("="):
            scanner.position = start
            return None
        if not scanner.take("("):
            return Assignment(match.group(1), scanner.word(), append, index)
        items: list[Word] = []
        while True:
            self._blanks()
            if scanner.take(")"):
                return Assignment(match.group(1), items, append)
            word = self._word()
            if word is None:
                raise scanner.error(f"cannot read the list of {match.group(1)}")
            items.append(word)

    def _take_redirect(self, redirects: list[Redirect]) -> bool:
        scanner = self.scanner
        match = _REDIRECT.match(scanner.text, scanner.position)
        if match is None or scanner.peek("<(") or scanner.peek(">("):
            return False
        scanner.position = match.end()
        operator = match.group().lstrip("0123456789")
        self._spaces()
        target = self._word() or ()
        if operator == "<<<":
            redirects.append(Redirect("<<", (), (*target, Literal("\n", quoted=True))))
        elif operator in ("<<", "<<-"):
            raw = any(isinstance(part, Literal) and part.quoted for part in target)
            end = "".join(part.text for part in target if isinstance(part, Literal))
            self._heredocs.append((Redirect(operator, target), end, raw, redirects))
        else:
            redirects.append(Redirect(operator, target))
        return True
