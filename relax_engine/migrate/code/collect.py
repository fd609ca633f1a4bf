"""The modules of a source that come along, each rewritten once.

What lives here: which files, and their new names. What does not: the rewriting of one (`transform`), and what is added
to it (`reward`, `environment`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import libcst as cst

from relax_engine.migrate.code.dispatch import OneSource
from relax_engine.migrate.code.modules import Place
from relax_engine.migrate.code.transform import Rewriter
from relax_engine.migrate.errors import MigrationError

_MOST_MODULES = 200


class Collection:
    """Files to rewrite, by the names that their modules get; `unresolved` are imports whose file is not there.

    `judges` are, for each new file, the names in it that ask a judge.
    """

    def __init__(self, algo: str, root: Path, data_source: str | None = None) -> None:
        """Look modules up below `root`; keep of a dispatch over `data_source` this one only."""
        self.algo, self.root, self.data_source = algo, root.resolve(), data_source
        self.unresolved: list[str] = []
        self.judges: dict[str, set[str]] = {}
        self._names: dict[Path, str] = {}
        self._queue: list[Path] = []

    def add(self, file: Path, name: str | None = None) -> str:
        """The new module name of a file that has to come along."""
        file = file.resolve()
        if file not in self._names:
            stem = file.parent.name if file.stem == "__init__" else file.stem
            numbered = (f"{stem}_{self.algo}_{number}" for number in range(1, _MOST_MODULES + 2))
            taken = set(self._names.values())
            self._names[file] = name or next(free for free in (stem, *numbered) if free not in taken)
            self._queue.append(file)
        return self._names[file]

    def rewritten(self) -> Iterator[tuple[Path, str, str]]:
        """Every file that was added and not handed out yet: its path, its new module name and its new text.

        Raises:
            MigrationError: a file is not Python, or there are too many.
        """
        while self._queue:
            file = self._queue.pop(0)
            if len(self._names) > _MOST_MODULES:
                raise MigrationError(f"{file}: more than {_MOST_MODULES} modules of the source are imported")
            tree = parse(file)
            rewriter = Rewriter(Place(file, self.root), self.add)
            chosen = tree if self.data_source is None else tree.visit(OneSource(self.data_source))
            code = chosen.visit(rewriter).code
            if rewriter.judges:
                self.judges[f"{self._names[file]}.py"] = rewriter.judges
            self.unresolved += [f"{item} (in {file.name})" for item in rewriter.unresolved]
            yield file, self._names[file], code


def parse(file: Path) -> cst.Module:
    """A Python file as a syntax tree.

    Raises:
        MigrationError: it is none.
    """
    try:
        return cst.parse_module(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, cst.ParserSyntaxError) as error:
        raise MigrationError(f"{file}: {' '.join(str(error).split())}") from error
