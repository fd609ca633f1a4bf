"""Rows of JSON files: one object a line, or one array of objects, read as a stream.

A line that is no row does not end the reading: it is handed on as a `BadRow` with the reason.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

from data_prep.errors import DataError
from data_prep.files import DECOMPRESSION_ERRORS, open_text
from data_prep.limits import CELL_BYTES, MIB
from data_prep.sources import JSON, Source

Row = dict[str, Any]

_EXCERPT = 200  # characters of a bad line that are kept
_WIDE = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_SPACE = b" \t\r\n"
_GAP = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that could not be read: its number in the file, the reason, and how it begins."""

    number: int
    reason: str
    excerpt: str = ""


def read_json_rows(source: Source) -> Iterator[tuple[int, Row | BadRow, int]]:
    """`(row number, row, bytes)` for the wanted rows, in order; blank lines are no rows.

    Raises:
        DataError: the file as a whole cannot be read: another encoding, damaged compression, a broken array.
    """
    with open_text(source) as stream:
        try:
            start = stream.peek(64)[:64]
            if start.startswith(_WIDE):
                raise DataError(f"{source.path!r} is UTF-16 or UTF-32 text; save it as UTF-8")
            if start.startswith(codecs.BOM_UTF8):
                stream.read(len(codecs.BOM_UTF8))
                start = start[len(codecs.BOM_UTF8) :]
            body = start.lstrip(_SPACE)
            if source.kind == JSON and body.startswith(b"["):
                stream.read(len(start) - len(body) + 1)
                yield from _array(source, stream)
            else:
                yield from _lines(source, stream)
        except DECOMPRESSION_ERRORS as error:
            raise DataError(f"{source.path!r} is damaged: {type(error).__name__}: {error}") from error


def _lines(source: Source, stream: BufferedReader) -> Iterator[tuple[int, Row | BadRow, int]]:
    number = line = 0
    while data := stream.readline(CELL_BYTES + 1):
        line += 1
        too_long = len(data) > CELL_BYTES and not data.endswith(b"\n")
        if too_long:
            while (rest := stream.readline(MIB)) and not rest.endswith(b"\n"):
                pass
        elif not data.strip(_SPACE):
            continue
        if source.stop is not None and number >= source.stop:
            return
        if number >= source.start:
            if too_long:
                yield number, BadRow(number, f"line {line}: longer than {CELL_BYTES // MIB} MiB", _excerpt(data)), 0
            else:
                yield number, _row(data, number, line), len(data)
        number += 1


def _row(data: bytes, number: int, line: int) -> Row | BadRow:
    try:
        row = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadRow(number, f"line {line}: not UTF-8 text: {error.reason} at byte {error.start}", _excerpt(data))
    except ValueError as error:  # json.JSONDecodeError, or an integer of more digits than Python parses
        return BadRow(number, f"line {line}: not JSON: {error}", _excerpt(data))
    except RecursionError:
        return BadRow(number, f"line {line}: JSON that is nested too deeply", _excerpt(data))
    if not isinstance(row, dict):
        return BadRow(number, f"line {line}: expected a JSON object, found {type(row).__name__}", _excerpt(data))
    return row


def _excerpt(data: bytes) -> str:
    return data[:_EXCERPT].decode("utf-8", "backslashreplace")


def _array(source: Source, stream: BufferedReader) -> Iterator[tuple[int, Row | BadRow, int]]:
    """Elements of an array whose bracket has been read; `text` is what has been read and not yet used up."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    scan = json.JSONDecoder().raw_decode
    text, position, number, chunk, ended = "", 0, 0, MIB, False
    while source.stop is None or number < source.stop:
        position = _end_of_gap(text, position)
        if text.startswith("]", position):
            return
        end, failure = -1, "the array does not end"
        try:
            element, end = scan(text, position)
        except json.JSONDecodeError as error:
            failure = f"not JSON: {error.msg}"
        except (RecursionError, ValueError) as error:
            raise DataError(f"{source.path!r}, element {number}: {error or 'nested too deeply'}") from error
        if end >= 0 and (end < len(text) or ended):
            if number >= source.start:
                yield number, _element(element, number, text[position : position + _EXCERPT]), end - position
            position, number, chunk = end, number + 1, MIB
            continue
        if ended or len(text) - position > CELL_BYTES:
            failure = failure if ended else f"longer than {CELL_BYTES // MIB} MiB, or not JSON"
            raise DataError(f"{source.path!r}, element {number}: {failure}")
        data = stream.read(chunk)
        ended, chunk = not data, chunk * 2  # a long element is not scanned again for every MiB of it
        try:
            text, position = text[position:] + decode(data, ended), 0
        except UnicodeDecodeError as error:
            raise DataError(f"{source.path!r}, element {number}: not UTF-8 text: {error.reason}") from error


def _end_of_gap(text: str, position: int) -> int:
    match = _GAP.match(text, position)
    return match.end() if match else position


def _element(value: object, number: int, excerpt: str) -> Row | BadRow:
    if isinstance(value, dict):
        return value
    return BadRow(number, f"element {number}: expected an object, found {type(value).__name__}", excerpt)
