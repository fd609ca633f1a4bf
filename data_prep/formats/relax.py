"""Our own layout, and tables that have its `prompt` and `label`: `metadata` is taken over, other columns join it."""

from __future__ import annotations

import json
from typing import Any

from data_prep.formats.common import messages, require, rest, structured_label
from data_prep.formats.media import MEDIA_COLUMNS, media_of
from data_prep.formats.options import ColumnOptions
from data_prep.json_rows import Row
from data_prep.schema import DIGEST, ID, LABEL, METADATA, PROMPT, ROW, Record

COLUMNS = (PROMPT, LABEL)


def convert(row: Row, options: ColumnOptions) -> Record:
    """One row as a record.

    Raises:
        ValueError: the row does not follow the layout, with the reason.
    """
    require(row, *COLUMNS)
    metadata = _metadata(row.get(METADATA)) | rest(row, *COLUMNS, METADATA, ID, DIGEST, ROW, *MEDIA_COLUMNS)
    return Record(messages(row[PROMPT]), structured_label(row[LABEL]), metadata, media_of(row))


def _metadata(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"metadata is text, but no JSON: {error}") from error
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"metadata is {type(value).__name__}, expected an object")
    return dict(value or {})
