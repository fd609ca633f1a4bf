"""Conversion of a dataset to our layout. The result is not published: it has not been validated yet."""

from __future__ import annotations

from flytekit import task
from flytekit.types.file import FlyteFile

from tasks import decks, html
from tasks.content import ContentFile
from tasks.executions import executed
from tasks.settings import CACHE, EVERY_TASK, SHORT, SMALL
from tasks.store import beside_artifacts, fetch, work_root
from tasks.types import ArtifactRef


@task(cache=CACHE, requests=SMALL, timeout=SHORT, **EVERY_TASK)
def convert_dataset(raw: ArtifactRef, format: str) -> ContentFile:
    """Convert a raw dataset of layout `format` to a Parquet file with prompt, label and metadata.

    Raises:
        DataError: unknown format, unreadable file, missing column, no rows.
        DataValidationError: rows that do not follow the layout.
    """
    with executed("convert_dataset"):
        from data_prep.convert import convert
        from data_prep.errors import DataError

        title = f"Conversion of {raw.ref}"
        try:
            # Named after its source, so that a later validation finds it again.
            result = convert(str(fetch(raw)), work_root() / "converted" / raw.digest / "data.parquet", format=format)
        except DataError as error:
            decks.show_failure(raw.ref, title, html.text(error, "bad"), html.lineage(None, [raw]))
            raise
        decks.show(title, html.figures({"layout": format, "rows": result.rows}), html.lineage(None, [raw]))
        # In a local run Flyte uploads a file only where it is told the place. The file's name is part of its identity.
        return FlyteFile(
            str(result.path), remote_path=beside_artifacts(f"converted/{raw.digest}/{format}/data.parquet")
        )
