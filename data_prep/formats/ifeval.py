"""IFEval and IFBench: a prompt and the instructions that its response must follow.

The label is JSON of instruction names and arguments; the metadata hold what the reward `ifbench` reads:
`instruction_id_list`, `kwargs`, `prompt_text`.
"""

from __future__ import annotations

from data_prep.formats.common import label, messages, require, rest
from data_prep.formats.options import ColumnOptions
from data_prep.json_rows import Row
from data_prep.json_text import dumps, plain
from data_prep.schema import Record

COLUMNS = ("prompt", "instruction_id_list", "kwargs")


def convert(row: Row, options: ColumnOptions) -> Record:
    """One prompt as a record.

    Raises:
        ValueError: the row does not follow the layout, or instructions and arguments differ in number.
    """
    require(row, *COLUMNS)
    names, arguments = row["instruction_id_list"], row["kwargs"]
    if not isinstance(names, list) or not isinstance(arguments, list) or len(names) != len(arguments) or not names:
        raise ValueError("instruction_id_list and kwargs must be lists of the same length, with at least one entry")
    checks = {"instruction_id_list": names, "kwargs": [plain(entry or {}) for entry in arguments]}
    metadata = rest(row, *COLUMNS) | checks | {"prompt_text": label(row["prompt"])}
    return Record(messages(row["prompt"]), dumps(checks), metadata)
