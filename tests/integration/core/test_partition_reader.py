"""A partition read as optimizer steps of parts, from a real stream."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from relax_engine.components.partition import PartitionReader
from relax_engine.components.role import Role, RoleContext
from relax_engine.config import RunConfig
from relax_engine.stream.client import StreamClient
from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.stream.errors import PartitionDroppedError
from relax_engine.stream.launch import start_stream

COLUMNS = ["sample_indices"]


@pytest.fixture
def stream(ray_cluster: None) -> Iterator[StreamClient]:
    stream = start_stream(name=None, num_data_storage_units=1, row_budget=1000, byte_budget=1 << 20)
    yield stream
    stream.close()


def put_groups(stream: StreamClient, *numbers: int) -> None:
    """Groups of two rows."""
    groups = np.repeat(numbers, 2)
    rows = {"group_index": Column.fixed(groups), "sample_indices": Column.fixed(2 * groups + [0, 1] * len(numbers))}
    stream.put("train_0", ColumnBatch(rows))


def reader(stream: StreamClient, task: str = "actor_train") -> PartitionReader:
    """Six groups in two steps, each of three groups in parts of two and one."""
    config = RunConfig.from_flat(
        rollout_batch_size=6,
        n_samples_per_prompt=2,
        num_steps_per_rollout=2,
        num_iters_per_train_update=2,
        wait_timeout=10.0,
    )
    return PartitionReader(stream, config, task=task, partition="train_0", columns=COLUMNS)


def samples(part: ColumnBatch) -> list[int]:
    return part["sample_indices"].values.tolist()


def test_steps_and_parts_and_the_same_again(stream: StreamClient) -> None:
    first = reader(stream)
    put_groups(stream, 0, 1)
    parts = first.parts(0)
    # Two groups of the partition's six are there, and the first part is.
    assert samples(next(parts)) == [0, 1, 2, 3]
    put_groups(stream, 2, 3, 4)
    assert [samples(part) for part in parts] == [[4, 5]]
    put_groups(stream, 5)
    stream.seal("train_0", meta={"data_position": {"epoch": 1}})
    assert [samples(part) for part in first.parts(1)] == [[6, 7, 8, 9], [10, 11]]
    assert first.meta == {"data_position": {"epoch": 1}}

    again = reader(stream)
    assert [[samples(part) for part in again.parts(step)] for step in (0, 1)] == [
        [[0, 1, 2, 3], [4, 5]],
        [[6, 7, 8, 9], [10, 11]],
    ]


def test_a_short_partition_ends_every_step(stream: StreamClient) -> None:
    put_groups(stream, 0, 1)
    stream.seal("train_0")
    short = reader(stream)
    assert [[samples(part) for part in short.parts(step)] for step in (0, 1)] == [[[0, 1, 2, 3]], []]


def test_the_last_step_takes_what_is_there(stream: StreamClient) -> None:
    put_groups(stream, *range(8))
    stream.seal("train_0")
    long = reader(stream)
    assert [len(samples(part)) for part in long.parts(0)] == [4, 2]
    assert [len(samples(part)) for part in long.parts(1)] == [4, 4, 2]


class Counting(Role):
    """Counts deliveries and adds nothing."""

    async def run(self) -> list[tuple[str, int]]:
        seen = []

        async def part(partition: str, sequence: int) -> bool:
            delivery = self.stream.take("count", partition, sequence, COLUMNS, 2, deadline_s=10)
            if not delivery.end:
                seen.append((partition, sequence))
                added = ColumnBatch({"counted": Column.fixed(np.zeros(2))})
                self.stream.put_columns(partition, delivery.rows, added, task="count", seq=sequence)
            return not delivery.end

        await self.work_through("count", part)
        return seen


def counting(stream: StreamClient, tmp_path: Path, restarts: int) -> Counting:
    config = RunConfig.from_flat(hf_checkpoint="m", prompt_data=["p"])
    return Counting(RoleContext(config, (), stream, str(tmp_path), 0, 2, restarts=restarts))


async def test_a_role_that_is_started_again_passes_over_what_was_trained_meanwhile(
    stream: StreamClient, tmp_path: Path
) -> None:
    put_groups(stream, 0, 1)
    stream.seal("train_0", meta={})
    assert stream.take("count", "train_0", 0, COLUMNS, 2, deadline_s=10).num_rows == 2  # and the one that took it died
    stream.finish_step("train_0")
    groups = np.repeat([2, 3], 2)
    rows = {"group_index": Column.fixed(groups), "sample_indices": Column.fixed(np.arange(4))}
    stream.put("train_1", ColumnBatch(rows))
    stream.seal("train_1", meta={})
    with pytest.raises(PartitionDroppedError, match="train_0"):
        await counting(stream, tmp_path, restarts=0).run()
    assert await counting(stream, tmp_path, restarts=1).run() == [("train_1", 0), ("train_1", 1)]
    assert await counting(stream, tmp_path, restarts=2).run() == []  # it goes on behind what was committed
