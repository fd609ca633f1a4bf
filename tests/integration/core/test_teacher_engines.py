"""Teachers behind HTTP: each row is scored by its own, and a dead engine's work goes to another of the same teacher."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.launch import EngineProcess, launch_engine
from relax_engine.components.teacher_scorers import EngineTeachers, TeacherError
from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.utils.network import free_port


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineProcess]]:
    """Two teachers with different random weights."""
    from examples.tiny_math.make_model import make_model

    root = tmp_path_factory.mktemp("teachers")
    paths = [make_model(root / name, seed=seed) for seed, name in enumerate(("first", "second"))]
    with launch_engine(str(paths[0])) as first, launch_engine(str(paths[1])) as second:
        yield [first, second]


def batch() -> ColumnBatch:
    """Five rows, one without a response, for the teachers 1, 0, 1, 1, 0."""
    responses = [3, 2, 0, 1, 4]
    tokens = [list(range(5, 9 + count)) for count in responses]
    return ColumnBatch(
        {
            "tokens": Column.ragged(tokens, np.int32),
            "response_lengths": Column.fixed(responses, np.int32),
            "teacher": Column.fixed([1, 0, 1, 1, 0], np.int32),
        }
    )


async def test_rows_are_scored_by_their_own_teacher_whichever_of_its_engines_lives(
    engines: list[EngineProcess],
) -> None:
    rows, dead = batch(), f"http://127.0.0.1:{free_port()}"
    teachers = EngineTeachers([[dead, engines[0].url], [engines[1].url]], timeout_s=20.0, top_k=2)
    columns = await teachers.score(rows)
    await teachers.close()
    assert columns["teacher_log_probs"].lengths.tolist() == rows["response_lengths"].values.tolist()
    assert columns["teacher_topk_ids"].values.shape == columns["teacher_topk_log_probs"].values.shape == (10, 2)
    for row, teacher in enumerate(rows["teacher"].values):
        async with EngineClient(engines[teacher].url) as client:
            (expected,) = await client.score([rows["tokens"].row(row).tolist()])
        count = int(rows["response_lengths"].values[row])
        np.testing.assert_allclose(columns["teacher_log_probs"].row(row), expected[len(expected) - count :], atol=1e-5)


async def test_a_teacher_without_engines_is_an_error_that_names_them() -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    teachers = EngineTeachers([[dead]], timeout_s=5.0, top_k=0)
    with pytest.raises(TeacherError, match=f"no engine of the teacher answered .{dead}"):
        await teachers.score(batch().select([1]).only(["tokens", "response_lengths"]))
    await teachers.close()
