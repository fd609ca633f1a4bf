"""One file per source format, registered by name: what it needs, and `(row, options) -> Record`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import pyarrow as pa

from data_prep.errors import DataError
from data_prep.formats import gpqa, ifeval, openai, redaccel, relax, sharegpt, tables, verl
from data_prep.formats.options import ColumnOptions
from data_prep.json_rows import Row
from data_prep.schema import Columns, Record


@dataclass(frozen=True, slots=True)
class Format:
    """A source layout. `convert` raises `ValueError` with the reason when a row does not follow it.

    `columns` are sets of columns, one of which a file must have. `convert_columns`, where there is one, does a whole
    batch at once, or returns None to have it done row by row.
    """

    name: str
    columns: tuple[tuple[str, ...], ...]
    convert: Callable[[Row, ColumnOptions], Record]
    convert_columns: Callable[[pa.RecordBatch], Columns | None] | None = None

    def missing(self, present: Collection[str]) -> str | None:
        """The column that keeps a file from having this layout, None if it may have it."""
        lacking = [next((name for name in needed if name not in present), None) for needed in self.columns]
        return None if None in lacking else lacking[0]


AUTO = "auto"

FORMATS = {
    layout.name: layout
    for layout in (
        Format("verl", (verl.COLUMNS,), verl.convert, verl.convert_columns),
        Format("relax", (relax.COLUMNS,), relax.convert),
        Format("gpqa", (gpqa.COLUMNS,), gpqa.convert),
        Format("ifeval", (ifeval.COLUMNS,), ifeval.convert),
        Format("openai", (("messages",),), openai.convert),
        Format("sharegpt", (("conversations",),), sharegpt.convert),
        Format("redaccel", redaccel.COLUMNS, redaccel.convert),
        Format("gsm8k", (("question", "answer"),), tables.gsm8k),
        Format("math", (("problem", "solution"),), tables.math),
        Format("dapo", (verl.COLUMNS,), tables.dapo),
        Format("qa", ((),), tables.question_answer),
    )
}
"""By name. `auto` takes the first, in this order, whose columns a file has and which `GUESSED` lists."""

GUESSED = ("verl", "relax", "gpqa", "ifeval", "openai", "sharegpt", "redaccel", "math")


def get_format(name: str, columns: Collection[str], options: ColumnOptions) -> Format:
    """The format of that name; for `auto` the one that a file with these columns has.

    Raises:
        DataError: an unknown name (lists the known ones), columns that fit none, or options that it does not take.
    """
    if name == AUTO:
        if options != ColumnOptions():
            return FORMATS["qa"]
        fitting = (FORMATS[known] for known in GUESSED if FORMATS[known].missing(columns) is None)
        layout = next(fitting, None)
        if layout is None:
            raise DataError(
                f"the columns {sorted(columns)} fit no layout that can be told from them; name it with --format "
                f"({', '.join(sorted(FORMATS))}), or the columns with --prompt-column and --label-column"
            )
        return layout
    if name not in FORMATS:
        raise DataError(f"unknown dataset format {name!r}; known formats: {AUTO}, {', '.join(sorted(FORMATS))}")
    if options != ColumnOptions() and name != "qa":
        raise DataError(f"--prompt-column and --label-column are for --format qa; {name!r} fixes its columns")
    return FORMATS[name]
