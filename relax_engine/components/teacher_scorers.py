"""Who computes a teacher's log-probs: inference engines asked over HTTP, or a model of the training backend.

What lives here: rows in, teacher columns out. What does not: the stream (`teacher`), and divergences
(`relax_engine.algorithms.distillation`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.types import EngineCallError, GenerateOutput
from relax_engine.errors import RelaxError
from relax_engine.stream.columns import Column, ColumnBatch

if TYPE_CHECKING:
    from relax_engine.components.train_group import TrainGroup

logger = logging.getLogger(__name__)

ROWS_PER_REQUEST = 16


class TeacherError(RelaxError):
    """No engine of a teacher gave an answer."""


class EngineTeachers:
    """Teachers behind HTTP, each one or more engines with the same weights.

    A row's teacher is its entry in the column `teacher`, an index into `urls`; without that column it is the first.
    Requests go to the engine with the fewest rows in flight; one that fails is asked of the teacher's other engines.
    """

    def __init__(self, urls: Sequence[Sequence[str]], *, timeout_s: float, top_k: int) -> None:
        self._clients = [[EngineClient(url, timeout_s=timeout_s) for url in each] for each in urls]
        self._in_flight = {client.url: 0 for each in self._clients for client in each}
        self._top_k = top_k

    async def score(self, batch: ColumnBatch) -> ColumnBatch:
        """The teacher's columns for rows with `tokens`, `response_lengths` and, with several teachers, `teacher`.

        Raises:
            TeacherError: all engines of a teacher failed; names them and the last cause.
        """
        lengths = batch["response_lengths"].values
        teacher = batch["teacher"].values if "teacher" in batch else np.zeros(batch.num_rows, np.int32)
        requests = []
        for index in np.unique(teacher):
            rows = np.flatnonzero((teacher == index) & (lengths > 0))
            parts = np.split(rows, range(ROWS_PER_REQUEST, len(rows), ROWS_PER_REQUEST))
            requests += [(int(index), part) for part in parts]
        answers = await asyncio.gather(*(self._ask(index, batch, rows) for index, rows in requests))
        outputs: dict[int, GenerateOutput] = {}
        for (_, rows), answer in zip(requests, answers, strict=True):
            outputs |= dict(zip(rows.tolist(), answer, strict=True))
        return self._columns([outputs.get(row) for row in range(batch.num_rows)])

    async def close(self) -> None:
        """End all connections."""
        for each in self._clients:
            for client in each:
                await client.close()

    async def _ask(self, teacher: int, batch: ColumnBatch, rows: np.ndarray) -> list[GenerateOutput]:
        if not len(rows):
            return []
        sequences = [batch["tokens"].row(int(row)).tolist() for row in rows]
        responses = batch["response_lengths"].values[rows].tolist()
        cause: EngineCallError | None = None
        for client in sorted(self._clients[teacher], key=lambda each: self._in_flight[each.url]):
            self._in_flight[client.url] += len(rows)
            try:
                return await client.score_responses(sequences, responses, top=self._top_k)
            except EngineCallError as error:
                logger.warning("a teacher's engine failed, asking the next: %s", error)
                cause = error
            finally:
                self._in_flight[client.url] -= len(rows)
        urls = ", ".join(client.url for client in self._clients[teacher])
        raise TeacherError(f"no engine of the teacher answered ({urls}): {cause}") from cause

    def _columns(self, outputs: Sequence[GenerateOutput | None]) -> ColumnBatch:
        none = np.empty(0, np.float32)
        sampled = [none if each is None else each.input_log_probs for each in outputs]
        columns = {"teacher_log_probs": Column.ragged(sampled, np.float32)}
        if self._top_k:
            empty = np.empty((0, self._top_k))
            ids = [empty if each is None else each.input_top_ids for each in outputs]
            values = [empty if each is None else each.input_top_log_probs for each in outputs]
            columns["teacher_topk_ids"] = Column.ragged(ids, np.int32)
            columns["teacher_topk_log_probs"] = Column.ragged(values, np.float32)
        return ColumnBatch(columns)


def model_columns(
    group: TrainGroup, batch: ColumnBatch, *, top_k: int, max_tokens: int, weights: str | None = None
) -> Mapping[str, Column]:
    """The teacher's columns by a model of the training backend, at temperature 1.

    Args:
        group: The ranks.
        batch: Rows with `tokens` and `response_lengths`.
        top_k: Likeliest tokens at each position; 0 for none.
        max_tokens: Token budget of one forward pass.
        weights: A snapshot to use instead of the present weights.
    """
    if not top_k:
        log_probs = group.forward_log_probs(batch, temperature=1.0, max_tokens=max_tokens, weights=weights)
        return {"teacher_log_probs": log_probs}
    found = group.forward_likeliest(batch, top_k, temperature=1.0, max_tokens=max_tokens, weights=weights)
    return {
        "teacher_log_probs": found["log_probs"],
        "teacher_topk_ids": found["ids"],
        "teacher_topk_log_probs": found["values"],
    }
