"""One pass over the rows: what each check says of each row, and what must be compared afterwards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from data_prep.checks.near import nearest, signature
from data_prep.checks.prompts import key, prompt_text, script
from data_prep.checks.tasks import TEXT, task_defect
from data_prep.errors import DataError
from data_prep.json_rows import BadRow, Row
from data_prep.readers import count_rows, read_batches
from data_prep.report import OK, RowFacts
from data_prep.schema import ID, METADATA, PLACEHOLDERS, label_defect, prompt_defect
from data_prep.sources import Source, Spec, parse_sources
from data_prep.tokens import Tokenize
from relax_engine.utils.progress import progress


class Collector:
    """Fills `facts`."""

    def __init__(
        self, task: str, rm_type: str | None, input_key: str, label_key: str, count: Tokenize | None, near: bool
    ) -> None:
        self.facts = RowFacts()
        self._task, self._rm_type, self._count, self._near = task, rm_type, count, near
        self._input_key, self._label_key = input_key, label_key
        for name, wanted in (("task", task != TEXT), ("label sanity", rm_type is not None)):
            if wanted:
                self.facts.flags[name] = []

    def read(self, sources: Sequence[Source]) -> None:
        """Look at every row.

        Raises:
            DataError: a file is damaged, or the reward is unknown.
        """
        for source in sources:
            base = len(self.facts.row) - source.start if len(sources) > 1 else 0
            with progress(f"validate {source.name}", count_rows(source)) as bar:
                for batch in read_batches(source):
                    for number, row in batch.rows():
                        self._add(base + number, f"{source.name}-{number}", row)
                    bar.advance(len(batch))

    def _add(self, number: int, name: str, row: Row | BadRow) -> None:
        facts = self.facts
        reason = row.reason if isinstance(row, BadRow) else None
        row = {} if isinstance(row, BadRow) else row
        prompt, label = row.get(self._input_key), row.get(self._label_key)
        metadata = _metadata(row)
        defect = reason or prompt_defect(prompt)
        text = prompt_text(prompt)
        facts.row.append(number)
        identity = row.get(ID, name)
        facts.id.append(identity if identity is None else str(identity))
        facts.prompt.append(defect or OK)
        facts.label.append(label_defect(label) or OK)
        facts.label_length.append(len(label) if isinstance(label, str) else 0)
        facts.data_source[str(metadata.get("data_source", ""))] += 1
        facts.scripts[script(text)] += 1
        facts.keys.append(key(text, _media_bytes(row)))
        if self._count:
            facts.prompt_tokens.append(None if defect else self._count(prompt, row))
        if self._near:
            facts.signatures.append(signature(text))
        if "task" in facts.flags:
            facts.flags["task"].append(reason or task_defect(self._task, prompt, label, metadata, row) or OK)
        if "label sanity" in facts.flags:
            facts.flags["label sanity"].append(self._label_problem(label) or OK)

    def _label_problem(self, label: Any) -> str | None:
        from relax_engine.rewards.labels import label_problem

        try:
            return label_problem(str(self._rm_type), label) if isinstance(label, str) else "no text"
        except ValueError as error:
            raise DataError(str(error)) from error

    def compare(self, unique: bool, near: float | None, against: Spec | None) -> dict[str, Any]:
        """Find duplicates and leaks; those that are asked for become rules. Returns the figures."""
        facts = self.facts
        keys = np.array(facts.keys, np.uint64)
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        original = first[inverse]
        repeated = np.flatnonzero(original != np.arange(len(keys)))
        figures: dict[str, Any] = {"duplicates": len(repeated)}
        if unique:
            facts.flags["duplicate"] = self._flag({int(row): self._like(int(original[row])) for row in repeated})
        signatures = np.stack(facts.signatures) if near is not None else None
        if near is not None and signatures is not None:
            exact = set(repeated.tolist())
            pairs = [pair for pair in nearest(signatures, None, near) if pair[0] not in exact]
            figures["near_duplicates"] = len(pairs)
            facts.flags["near duplicate"] = self._flag(
                {row: f"{similarity} {self._like(other)}" for row, other, similarity in pairs}
            )
        if against is not None:
            leaks = self._leaks(against, keys, signatures, near)
            figures["leaks"] = len(leaks)
            facts.flags["leak"] = self._flag(leaks)
        return figures

    def _leaks(self, against: Spec, keys: np.ndarray, signatures: Any, near: float | None) -> dict[int, str]:
        other = Collector(TEXT, None, self._input_key, self._label_key, None, near is not None)
        other.read(parse_sources(against))
        if not other.facts.row:
            return {}
        theirs, first = np.unique(np.array(other.facts.keys, np.uint64), return_index=True)
        places = np.minimum(np.searchsorted(theirs, keys), len(theirs) - 1)
        same = np.flatnonzero(theirs[places] == keys)
        leaks = {int(row): f"the same as evaluation row {other.facts.row[first[places[row]]]}" for row in same}
        if near is not None:
            for row, theirs_row, similarity in nearest(signatures, np.stack(other.facts.signatures), near):
                leaks.setdefault(row, f"{similarity} like evaluation row {other.facts.row[theirs_row]}")
        return leaks

    def _like(self, index: int) -> str:
        return f"like row {self.facts.row[index]}"

    def _flag(self, found: dict[int, str]) -> list[str]:
        return [found.get(index, OK) for index in range(len(self.facts.row))]


def _metadata(row: Row) -> dict[str, Any]:
    """The row's metadata, or the row itself where it has none."""
    metadata = row.get(METADATA)
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata)
        except (ValueError, RecursionError):
            metadata = None
    return metadata if isinstance(metadata, dict) else row


def _media_bytes(row: Row) -> bytes:
    items = (item for column in PLACEHOLDERS for item in row.get(column) or [])
    return b"".join(item.get("bytes") or b"" for item in items if isinstance(item, dict))
