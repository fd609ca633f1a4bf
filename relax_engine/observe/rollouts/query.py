"""Looking into the samples of a run with DuckDB: lists, single samples, and figures by step.

What lives here: queries. What does not: filters (`filters.py`), printing (`relax_engine.cli.rollouts`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from relax_engine.observe.rollouts.filters import Expression, QueryError, conditions, field
from relax_engine.observe.rollouts.parts import read_parts

if TYPE_CHECKING:
    import duckdb

DEFAULT_COLUMNS = (
    "step",
    "sample_index",
    "group_index",
    "status",
    "reward",
    "advantage",
    "response_length",
    "response",
)
SHOWN_CHARACTERS = 2000
"""Longest text in a list; `sample` gives the whole."""

_MEMORY_MB = 256
_BY_STEP = """
SELECT s.step, count(*) AS samples, avg(s.reward) AS reward, stddev_pop(s.reward) AS reward_std,
       avg(s.response_length) AS response_length, avg((s.status = 'truncated')::INT) AS truncated,
       avg(s.mean_log_prob) AS mean_log_prob, count(DISTINCT s.group_index) AS groups
FROM samples AS s WHERE {where} GROUP BY s.step ORDER BY s.step
"""


class Rollouts:
    """The recorded samples of one run; of a run that goes on, those that are there now.

    Every query reads the manifest anew. DuckDB gets 256 MB of memory, and spills to disk beyond that.
    """

    def __init__(self, run_dir: Path) -> None:
        """Raises `QueryError` where the run recorded nothing."""
        import duckdb

        self.directory = run_dir / "rollouts"
        if not self.directory.is_dir():
            raise QueryError(f"{run_dir} has no recorded samples (no directory `rollouts`; --record-rollouts makes it)")
        self._database = duckdb.connect(":memory:")
        self._database.execute(f"SET memory_limit='{_MEMORY_MB}MB'")
        self._database.execute("SET enable_progress_bar=false")
        self._parquet_only()

    def _parquet_only(self) -> None:
        """No extension is fetched, and no file but those of this directory is read."""
        self._database.execute("SET autoinstall_known_extensions=false")
        self._database.execute("SET autoload_known_extensions=false")
        allowed = str(self.directory.absolute()).replace("'", "''")
        self._database.execute(f"SET allowed_directories=['{allowed}/']")
        self._database.execute("SET enable_external_access=false")
        self._database.execute("SET lock_configuration=true")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the database."""
        self._database.close()

    def find(
        self,
        where: Sequence[str] = (),
        *,
        sort: str = "step:desc",
        columns: Sequence[str] = DEFAULT_COLUMNS,
        limit: int = 50,
        offset: int = 0,
    ) -> list[dict[str, Any]]:
        """Samples that fulfil all of `where`, sorted by a field (`FIELD:desc`: the largest first).

        Long texts are cut after `SHOWN_CHARACTERS`.

        Raises:
            QueryError: a filter or field that there is not.
        """
        chosen = conditions(where)
        order = field(sort.removesuffix(":desc"))
        direction = "DESC NULLS LAST" if sort.endswith(":desc") else "ASC NULLS LAST"
        keys = self._rows(
            f"SELECT s.step, s.sample_index FROM {self._tables(chosen.trained or order.trained)} WHERE {chosen.sql} "
            f"ORDER BY {order.sql} {direction}, s.step, s.sample_index LIMIT ? OFFSET ?",
            [*chosen.parameters, *order.parameters, limit, offset],
        )
        if not keys:
            return []
        # The columns of these alone, of which texts are the larger part, are read in a second pass.
        shown = [field(name) for name in columns]
        names = ", ".join(f"{_short(e)} AS c{i}" for i, e in enumerate(shown))
        steps = sorted({key["step"] for key in keys})
        found = self._rows(
            f"SELECT s.step AS k0, s.sample_index AS k1, {names} "
            f"FROM {self._tables(any(e.trained for e in shown), steps)} "
            f"WHERE s.step IN ({_marks(steps)}) AND s.sample_index IN ({_marks(keys)})",
            [*(p for e in shown for p in e.parameters), *steps, *(key["sample_index"] for key in keys)],
        )
        by_key = {(row["k0"], row["k1"]): row for row in found}
        rows = [by_key[key["step"], key["sample_index"]] for key in keys]
        return [{name: _plain(row[f"c{i}"]) for i, name in enumerate(columns)} for row in rows]

    def count(self, where: Sequence[str] = ()) -> int:
        """How many samples fulfil all of `where`."""
        chosen = conditions(where)
        sql = f"SELECT count(*) AS n FROM {self._tables(chosen.trained)} WHERE {chosen.sql}"
        return int(self._rows(sql, chosen.parameters)[0]["n"])

    def sample(self, step: int, sample_index: int) -> dict[str, Any]:
        """Everything about one sample, with what training made of it; `media` as `MediaStore.describe` gives it.

        Raises:
            QueryError: it was not recorded.
        """
        found = self._rows(
            f"SELECT s.*, t.* EXCLUDE (step, sample_index) FROM {self._tables(True, [step])} "
            "WHERE s.step = ? AND s.sample_index = ?",
            [step, sample_index],
        )
        if not found:
            raise QueryError(f"{self.directory} has no sample {sample_index} of step {step}")
        sample = {name: _plain(value) for name, value in found[0].items()}
        sample["spans"] = json.loads(sample["spans"])
        sample["media"] = json.loads(sample["media"] or "[]")
        return sample

    def group(self, step: int, group_index: int) -> list[dict[str, Any]]:
        """The samples of one prompt, in order."""
        return self.find([f"step={step}", f"group_index={group_index}"], sort="sample_index", limit=1000)

    def steps(self, where: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Figures by step: samples, groups, mean and spread of rewards, lengths, the truncated share, log-probs."""
        chosen = conditions(where)
        sql = _BY_STEP.format(where=chosen.sql).replace("samples AS s", self._tables(chosen.trained))
        return [{name: _plain(value) for name, value in row.items()} for row in self._rows(sql, chosen.parameters)]

    def last_step(self) -> int | None:
        """The newest step with a sample; None where there is none yet."""
        return max((part.last_step for part in read_parts(self.directory / "samples")), default=None)

    def _tables(self, trained: bool, steps: Sequence[int] | None = None) -> str:
        """What to select from: `samples` as `s`, and where asked for `training` as `t`; files of `steps` alone."""
        samples = f"{self._files('samples', steps)} AS s"
        if not trained:
            return samples
        return f"{samples} LEFT JOIN {self._files('training', steps)} AS t USING (step, sample_index)"

    def _files(self, table: str, steps: Sequence[int] | None) -> str:
        directory = self.directory.absolute() / table
        files = [
            str(directory / part.file).replace("'", "''")
            for part in read_parts(directory)
            if steps is None or any(part.first_step <= step <= part.last_step for step in steps)
        ]
        from relax_engine.observe.rollouts.tables import SAMPLES, TRAINING

        schema = SAMPLES if table == "samples" else TRAINING
        empty = ", ".join(f"NULL::{_SQL_TYPES[str(column.type)]} AS {column.name}" for column in schema)
        nothing = f"SELECT {empty} WHERE FALSE"
        if not files:
            return f"({nothing})"
        # Files of an earlier version lack columns that came since: they are empty there.
        listed = ", ".join(f"'{file}'" for file in files)
        return f"({nothing} UNION ALL BY NAME SELECT * FROM read_parquet([{listed}], union_by_name=true))"

    def _rows(self, sql: str, parameters: Sequence[Any]) -> list[dict[str, Any]]:
        cursor: duckdb.DuckDBPyConnection = self._database.cursor()
        cursor.execute(sql, list(parameters))
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


_SQL_TYPES = {
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "map<string, double>": "MAP(VARCHAR, DOUBLE)",
    "list<item: int32>": "INTEGER[]",
    "list<item: uint8>": "UTINYINT[]",
    "list<item: float>": "FLOAT[]",
}


def _short(expression: Expression) -> str:
    texts = ("s.label", "s.prompt", "s.response", "s.metadata", "s.media")
    return f"left({expression.sql}, {SHOWN_CHARACTERS})" if expression.sql in texts else expression.sql


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _plain(value: Any) -> Any:
    """For JSON: NaN and infinities, which it has not, as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value
