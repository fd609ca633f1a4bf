"""A look at prompt files before anything is started: what a role would refuse minutes into the run.

What lives here: checks that cost seconds at most, whatever the size. Every row is checked again when it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from relax_engine.rollout.data_source import DataSettings, PromptDataSource
from relax_engine.rollout.prompts import PromptDataError, prompt_tables

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedTokenizerBase

_LONGEST = 256


def check_prompts(settings: DataSettings, load_tokenizer: Callable[[], PreTrainedTokenizerBase]) -> None:
    """Find labels that are no text, and prompts above `max_prompt_tokens`, among the longest ones.

    A token is at least a byte of text, so only prompts of more bytes than half the limit are tokenised (the other half
    is the chat template's), the longest 256 of them; without any, no tokenizer is loaded.

    Raises:
        PromptDataError: names the row.
    """
    columns = [key for key in (settings.input_key, settings.label_key) if key]
    limit = None if settings.custom_prompt_path is not None else settings.max_prompt_tokens
    rows, sizes = 0, np.zeros(0, np.int64)
    longest = np.zeros(0, np.int64)
    for table in prompt_tables(settings.prompt_data, columns=columns):
        if settings.label_key in table.column_names:
            _check_labels(table.column(settings.label_key), rows, settings)
        if limit is not None and settings.input_key in table.column_names:
            sizes = np.concatenate([sizes, _sizes(table.column(settings.input_key))])
            longest = np.concatenate([longest, np.arange(rows, rows + table.num_rows)])
            kept = np.argsort(-sizes, kind="stable")[:_LONGEST]
            sizes, longest = sizes[kept], longest[kept]
        rows += table.num_rows
    suspects = [int(row) for row, size in zip(longest, sizes, strict=True) if limit is not None and size > limit // 2]
    if suspects:
        source = PromptDataSource(replace(settings, shuffle=False), load_tokenizer(), 1)
        for row in suspects:
            source.row_group(row, row)


def _check_labels(column: pa.ChunkedArray, first: int, settings: DataSettings) -> None:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        return
    row = next((row for row, value in enumerate(column) if value.is_valid), None)
    if row is not None:
        raise PromptDataError(
            f"row {first + row} of --prompt-data {list(settings.prompt_data)}: label {column[row].as_py()!r} is "
            f"{kind}, not a string; convert the column {settings.label_key!r} first (`relax data convert`)"
        )


def _sizes(column: pa.ChunkedArray) -> np.ndarray:
    """UTF-8 bytes of every prompt: of the text, or of all message contents."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return np.asarray(pc.fill_null(pc.binary_length(column), 0))
    rows = column.to_pylist()
    return np.array([sum(len(str(message.get("content") or "").encode()) for message in row or []) for row in rows])
