"""RedAccel's layout: a prompt (chat messages or text), its solution, and `extra_info`.

A RedAccel reward is called with `solutions` and `extra_info`; here they are `sample.label` and `sample.metadata`, so
the fields of `extra_info` become the metadata itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from data_prep.formats.common import messages, rest, structured_label
from data_prep.formats.media import MEDIA_COLUMNS, media_of
from data_prep.formats.options import ColumnOptions
from data_prep.json_rows import Row
from data_prep.schema import Record

_PROMPTS = ("prompt", "raw_prompt", "prompts")
_SOLUTIONS = ("solution", "solutions")
COLUMNS = tuple((prompt, solution) for prompt in _PROMPTS for solution in _SOLUTIONS)


def convert(row: Row, options: ColumnOptions) -> Record:
    """One row as a record.

    Raises:
        ValueError: the row does not follow the layout, with the reason.
    """
    prompt = next((row[name] for name in _PROMPTS if row.get(name) is not None), None)
    solution = next((row[name] for name in _SOLUTIONS if row.get(name) is not None), None)
    extra = row.get("extra_info") or {}
    if not isinstance(extra, Mapping):
        raise ValueError(f"extra_info is {type(extra).__name__}, expected an object")
    metadata = rest(row, *_PROMPTS, *_SOLUTIONS, "extra_info", *MEDIA_COLUMNS) | rest(extra)
    return Record(messages(prompt), structured_label(solution), metadata, media_of(row))
