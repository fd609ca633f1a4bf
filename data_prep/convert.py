"""Conversion of a source layout to ours: a stream of batches in, one Parquet file out.

Promises: the same input gives the same bytes; memory does not grow with the input; the output appears under its name
only when it is complete; a conversion that was cut off continues where it was; rows that cannot be converted are all
counted and the first listed, and either they are set aside (`quarantine`) or nothing is written.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from data_prep.conversion import MAX_EXAMPLES, Conversion
from data_prep.errors import DataError, DataValidationError, Finding
from data_prep.formats import AUTO
from data_prep.formats.options import ColumnOptions
from data_prep.schema import SCHEMA_VERSION
from data_prep.sources import Spec, parse_sources
from data_prep.spool import SegmentState, Spool
from data_prep.writer import replacing, write_parquet

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """What a user may say about the source and its media.

    `media_root` is the only folder that media paths may lead into; by default the file's own. URLs of media are kept as
    they are unless `fetch_media`.
    """

    columns: ColumnOptions = field(default_factory=ColumnOptions)
    media_root: str | None = None
    fetch_media: bool = False


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """The file written, its rows, the layout, the SHA-256 of each source file, and how many rows were set aside."""

    path: Path
    rows: int
    format: str
    source_digests: tuple[str, ...]
    bad: int = 0


def convert(
    spec: Spec,
    destination: str | Path,
    *,
    format: str = AUTO,
    options: ConvertOptions | None = None,
    quarantine: str | Path | None = None,
    max_bad_share: float = 1.0,
) -> ConversionResult:
    """Convert the files that `spec` names (`data_prep.sources.parse_spec`) to one Parquet file in our layout.

    Args:
        spec: a path, URL, glob or directory, a slice of a file, or a list of these.
        destination: the Parquet file to write; an existing one is replaced.
        format: name of the source layout; `auto` tells it from the columns.
        options: see `ConvertOptions`.
        quarantine: JSONL file for rows that cannot be converted; without it any such row is an error.
        max_bad_share: with `quarantine`, the share of rows above which they are an error all the same.

    Raises:
        DataError: unknown format, unreadable file, missing column, no rows.
        DataValidationError: rows that do not follow the layout; lists them.
    """
    options = options or ConvertOptions()
    destination = Path(destination)
    sources = parse_sources(spec)
    conversion = Conversion.prepare(sources, format, options.columns, options.media_root, options.fetch_media)
    digests = conversion.digests
    job = [asdict(source) for source in sources], digests, conversion.layout.name, asdict(options), conversion.media
    key = hashlib.sha256(json.dumps([SCHEMA_VERSION, *job]).encode()).hexdigest()
    spool = Spool(destination.absolute().parent / f".{destination.name}.parts", key)
    try:
        states = conversion.run(spool)
        return _finish(conversion, states, spool, destination, quarantine, max_bad_share)
    except DataError:
        spool.remove()
        raise
    finally:
        spool.release()


def _finish(
    conversion: Conversion,
    states: Sequence[SegmentState],
    spool: Spool,
    destination: Path,
    quarantine: str | Path | None,
    max_bad_share: float,
) -> ConversionResult:
    sources = ", ".join(map(str, conversion.sources))
    rows, bad = sum(state.rows for state in states), sum(state.bad for state in states)
    if not rows + bad:
        raise DataError(f"{sources} holds no rows; give a file with at least one prompt")
    if quarantine is not None and bad:
        with replacing(Path(quarantine)) as partial:
            spool.copy_bad(len(states), partial)
    share = bad / (rows + bad)
    if bad and (quarantine is None or share > max_bad_share or not rows):
        raise DataValidationError(sources, _findings(conversion, states))
    with replacing(destination) as partial:
        write_parquet(spool.tables(len(states)), conversion.schema, partial)
    spool.remove()
    logger.info("converted %d rows of %s to %s, set %d aside", rows, sources, destination, bad)
    return ConversionResult(destination, rows, conversion.layout.name, conversion.digests, bad)


def _findings(conversion: Conversion, states: Sequence[SegmentState]) -> list[Finding]:
    count = sum(state.bad for state in states)
    several = len(conversion.sources) > 1
    examples = [
        (row, f"{conversion.sources[source].name}: {reason}" if several else reason)
        for state in states
        for source, row, reason in state.examples
    ]
    rule = f"not a row of the {conversion.layout.name!r} layout"
    return [Finding("layout", rule, count, tuple(examples[:MAX_EXAMPLES]))]
