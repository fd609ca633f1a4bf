"""The stream between processes: payloads, order, back-pressure, deadlines, admission."""

import asyncio
import threading
import time

import numpy as np
import pytest
import ray
from stream_batches import check_rows, rows_batch

from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.stream.delivery import RowGroups
from relax_engine.stream.errors import BudgetError, PartitionDroppedError, StreamTimeoutError
from relax_engine.stream.launch import connect_stream

COLUMNS = ("tokens", "row")


def test_payloads_survive_the_way(new_stream, new_peer):
    rng = np.random.default_rng(0)
    big = rng.integers(0, 1 << 30, 16 << 20, np.int32)  # one row of 64 MiB
    images = [rng.integers(0, 256, (h, w, 3), np.uint8) for h, w in ((480, 640), (1, 1), (224, 224))]
    batch = ColumnBatch(
        {
            "tokens": Column.ragged([big, big[:0], big[:5]], np.int32),
            "log_probs": Column.ragged([[], [], []], np.float32),
            "image": Column.objects(images),
            "pixels": Column.ragged([image.reshape(-1, 3) for image in images], np.uint8),
            "shape": Column.fixed(np.array([image.shape for image in images])),
        }
    )
    client = new_stream()
    producer = new_peer(client)
    ray.get(producer.call.remote("put", "train_0", batch), timeout=60)
    client.seal("train_0")
    got = client.fetch(client.take("t", "train_0", 0, tuple(batch), None, deadline_s=30))
    assert np.array_equal(got["tokens"].row(0), big)
    assert got["tokens"].lengths.tolist() == [len(big), 0, 5]
    assert got["log_probs"].lengths.tolist() == [0, 0, 0]
    for index, image in enumerate(images):
        assert np.array_equal(got["image"].row(index), image)
        assert np.array_equal(got["pixels"].row(index).reshape(got["shape"].row(index)), image)
    assert not got["tokens"].values.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        got["tokens"].values[0] = 1


def test_all_ranks_and_retries_get_the_same_rows(new_stream, new_peer):
    client = new_stream()
    ranks = [new_peer(client) for _ in range(3)]
    calls = [
        rank.call.remote("take", "train", "train_0", seq, COLUMNS, 8, deadline_s=60)
        for seq in range(5)
        for rank in ranks
    ]
    for first in range(0, 32, 4):
        client.put("train_0", rows_batch(first, 4))
    client.seal("train_0")
    deliveries = ray.get(calls, timeout=90)
    for seq in range(5):
        same = deliveries[3 * seq : 3 * seq + 3]
        assert len({(d.spans, d.end) for d in same}) == 1
        assert same[0].end == (seq == 4)
        if seq < 4:
            assert check_rows(client.fetch(same[0])) == list(range(8 * seq, 8 * seq + 8))


def test_puts_keep_their_order_and_share_messages(new_stream):
    client = new_stream()
    puts = [client.put_nowait("train_0", rows_batch(first, 8)) for first in range(0, 800, 8)]
    assert [put.rows() for put in puts] == [range(first, first + 8) for first in range(0, 800, 8)]
    held = client.processes()["units"][0]["held"]["train_0"]
    assert held < 50
    client.seal("train_0")
    rows = []
    for delivery, batch in client.deliveries("t", "train_0", COLUMNS, 24, ahead=4):
        assert delivery.num_rows <= 24
        rows += check_rows(batch)
    assert rows == list(range(800))
    assert client.committed("t", "train_0") == 33


async def test_concurrent_async_puts_and_takes(new_stream):
    client = new_stream()
    take = asyncio.create_task(asyncio.to_thread(client.take, "t", "train_0", 0, COLUMNS, 64, deadline_s=60))
    ranges = await asyncio.gather(*(client.aput("train_0", rows_batch(8 * i, 8)) for i in range(8)))
    assert sorted(rows.start for rows in ranges) == list(range(0, 64, 8))
    batch = client.fetch(await take)
    assert sorted(check_rows(batch)) == list(range(64))


def test_a_producer_waits_for_room_and_is_told_who_holds_it_back(new_stream):
    client = new_stream(row_budget=64)
    client.put("train_0", rows_batch(0, 64))
    client.take("actor_train", "train_0", 0, COLUMNS, 16, deadline_s=10)
    with pytest.raises(
        StreamTimeoutError, match=r"'train_1' .* 64 of 64 rows .*'train_0' .*'actor_train' has 16 of 64"
    ):
        client.put("train_1", rows_batch(64, 8), deadline_s=1)
    assert client.stats().produced == 64
    waiting = client.put_nowait("train_1", rows_batch(64, 8), deadline_s=60)
    time.sleep(0.3)
    assert not waiting.future.done()
    client.drop("train_0")
    assert waiting.rows() == range(8)
    with pytest.raises(BudgetError, match="a batch of 66 rows"):
        client.put("train_1", rows_batch(0, 66))
    assert client.stats().in_flight == 8


def test_the_byte_budget_holds_for_rows_and_not_for_columns(new_stream):
    client = new_stream(byte_budget=1 << 20)
    wide = ColumnBatch({"tokens": Column.fixed(np.zeros((1, 900_000), np.uint8))})
    client.put("train_0", wide)
    with pytest.raises(StreamTimeoutError, match="900000 of 1048576 bytes"):
        client.put("train_0", wide, deadline_s=1)
    client.put_columns("train_0", [0], ColumnBatch({"advantages": Column.fixed(np.zeros((1, 900_000), np.uint8))}))
    assert client.stats().nbytes == 1_800_000


def test_a_take_that_times_out_says_what_is_missing(new_stream):
    client = new_stream(max_staleness=0, groups_per_step=4)
    assert client.admit(4) == [0, 1, 2, 3]
    client.assign([3], "http://10.0.0.7:3000")
    client.put("train_0", rows_batch(0, 6))
    client.put_columns("train_0", range(2), ColumnBatch({"advantages": Column.fixed([0.0, 1.0])}))
    start = time.monotonic()
    with pytest.raises(StreamTimeoutError) as caught:
        client.take("actor_train", "train_0", 0, ("tokens", "advantages"), 8, deadline_s=2)
    assert time.monotonic() - start < 2.5
    text = str(caught.value)
    assert "task 'actor_train'" in text
    assert "partition 'train_0'" in text
    assert "column 'advantages' is missing on rows 2-5 (4 rows)" in text
    assert "group 3 for" in text
    assert "on http://10.0.0.7:3000" in text


def test_admission_is_shared_and_freed_by_training(new_stream, new_peer):
    client = new_stream(max_staleness=0, groups_per_step=2)
    actor = new_peer(connect_stream(client_name(client)))
    assert client.admit(2) == [0, 1]
    with pytest.raises(StreamTimeoutError, match=r"1 admission slots, 0 are free: .*group 0 for"):
        client.admit(1, deadline_s=1)
    client.put("train_0", rows_batch(0, 4))
    admitted = []
    waiter = threading.Thread(target=lambda: admitted.extend(client.admit(2, deadline_s=60)))
    waiter.start()
    ray.get(actor.call.remote("take", "train", "train_0", 0, COLUMNS, 4), timeout=60)
    time.sleep(0.3)
    assert admitted == []
    after = ray.get(actor.call.remote("finish_step", "train_0", version=1), timeout=60)
    assert (after.trained, after.weight_version) == (4, 1)
    waiter.join(30)
    assert admitted == [2, 3]
    client.record_filtered(2, groups=[2])
    assert client.admit(1) == [4]
    stats = client.stats()
    assert (stats.produced, stats.trained, stats.filtered, stats.weight_version) == (6, 4, 2, 1)
    state = client.gate_state()
    client.recover_gate(1, next_group=state["next_group"], pending=state["pending"])
    assert client.admit(2) == [3, 4]


def client_name(client):
    """The name under which the test's stream was started."""
    (name,) = (
        entry["name"]
        for entry in ray.util.list_named_actors(all_namespaces=True)
        if ray.get_actor(entry["name"], namespace=entry["namespace"])._actor_id == client._controller._actor_id
    )
    return name


def test_the_end_of_a_partition(new_stream):
    client = new_stream()
    client.put("train_0", rows_batch(0, 4), token="batch-0")
    assert client.put("train_0", rows_batch(0, 4), token="batch-0") == range(4)
    assert client.seal("train_0", meta={"rollout_id": 0}) == 4
    client.wait_partition("train_0", "sealed", deadline_s=5)
    (info,) = client.partitions()
    assert (info.name, info.rows, info.sealed, info.columns["tokens"]) == ("train_0", 4, True, 4)
    delivery = client.take("t", "train_0", 0, COLUMNS, 4, commit=None)
    assert delivery.meta == {"rollout_id": 0}
    client.commit("t", "train_0", 0)
    assert client.take("t", "train_0", 1, COLUMNS, 4).end
    client.reset_consumption("train_0", "t")
    assert client.committed("t", "train_0") == -1
    assert client.take("t", "train_0", 0, COLUMNS, 4).spans == delivery.spans
    with pytest.raises(StreamTimeoutError, match="'train_0' to be dropped"):
        client.wait_partition("train_0", "dropped", deadline_s=1)
    assert client.drop("train_0", dropped_stale=1)
    assert not client.drop("train_0")
    client.wait_partition("train_0", "dropped", deadline_s=5)
    with pytest.raises(PartitionDroppedError):
        client.take("t", "train_0", 2, COLUMNS, 4)
    stats = client.stats()
    assert (stats.produced, stats.trained, stats.dropped_stale, stats.in_flight, stats.nbytes) == (4, 3, 1, 0, 0)
    assert client.processes()["units"][0]["held"] == {}


def test_groups_given_apart_from_the_batch(new_stream):
    client = new_stream()
    rows = ColumnBatch({"row": Column.fixed(np.arange(5))})
    client.put("train_0", rows, groups=RowGroups((4, 9), (3, 2)))
    assert client.take("t", "train_0", 0, ("row",), 4).spans == ((0, 3),)
