"""The stream's promises while processes die: every test sends a real SIGKILL."""

import os
import random
import signal
import time

import numpy as np
import pytest
import ray
from stream_batches import check_rows, rows_batch
from stream_processes import kill, kill_pid

from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.stream.errors import BlockLostError, StreamUnavailableError

COLUMNS = ("tokens", "row")


def read_all(client, partition, task="reader"):
    delivery = client.take(task, partition, 0, COLUMNS, None, deadline_s=30)
    return check_rows(client.fetch(delivery, deadline_s=30))


def fill_store(client, partition, megabytes):
    """Overwrites whatever memory of the object store is free."""
    for number in range(megabytes // 10):
        client.put(
            partition, ColumnBatch({"row": Column.fixed(np.full((1, 10 << 17), -number))}), groups=None, deadline_s=60
        )


def test_rows_outlive_their_producer(new_stream, new_peer):
    client = new_stream(num_data_storage_units=2)
    producer = new_peer(client)
    for first in range(0, 256, 64):
        ray.get(producer.call.remote("put", "train_0", rows_batch(first, 64, length=4000)), timeout=60)
    kill(producer)
    client.seal("train_0")
    fill_store(client, "noise", 200)
    fresh = new_peer(client)
    delivery = ray.get(fresh.call.remote("take", "reader", "train_0", 0, COLUMNS, None, deadline_s=30), timeout=60)
    batch = ray.get(fresh.call.remote("fetch", delivery), timeout=60)
    assert check_rows(batch, length=4000) == list(range(256))
    client.drop("noise")


def add_column(client, stop_after):
    """A role: reads rows, adds a column, commits both in one step; dies in the middle of its work."""
    partition, task = "train_0", "ref_log_probs"
    for count, (delivery, batch) in enumerate(client.deliveries(task, partition, ("row", "tokens"), 16, deadline_s=30)):
        if count == stop_after:
            os.kill(os.getpid(), signal.SIGKILL)
        extra = ColumnBatch({"ref": Column.fixed(batch["row"].values * 10), "pid": Column.fixed([os.getpid()] * 16)})
        client.put_columns(partition, delivery, extra, task=task, seq=delivery.seq, deadline_s=30)


def test_a_killed_consumer_continues_and_no_row_is_worked_twice(new_stream, new_peer):
    client = new_stream()
    for first in range(0, 160, 32):
        client.put("train_0", rows_batch(first, 32))
    client.seal("train_0")
    pids = []
    for stop_after in (3, 0, 4, None):
        peer = new_peer(client)
        pids.append(ray.get(peer.pid.remote(), timeout=60))
        work = peer.run.remote(add_column, stop_after)
        if stop_after is None:
            ray.get(work, timeout=60)
        else:
            with pytest.raises(ray.exceptions.RayActorError):
                ray.get(work, timeout=60)
    assert client.committed("ref_log_probs", "train_0") == 9
    batch = client.fetch(client.take("train", "train_0", 0, ("row", "ref", "pid"), None, deadline_s=30))
    assert batch["ref"].values.tolist() == [10 * row for row in range(160)]
    worked = [int((batch["pid"].values == pid).sum()) for pid in pids]
    assert worked == [3 * 16, 0, 4 * 16, 3 * 16]
    assert client.stats().duplicate_rows == 0


def test_a_killed_storage_unit_is_restarted_and_holds_its_blocks_again(new_stream, new_peer):
    client = new_stream()
    producer = new_peer(client)
    ray.get(producer.call.remote("put", "train_0", rows_batch(0, 64)), timeout=60)
    (before,) = client.processes()["units"]
    kill_pid(before["pid"])
    client.put("train_0", rows_batch(64, 64), deadline_s=60)  # a put meets the dead unit and is repeated
    deadline = time.monotonic() + 60
    while client.processes()["units"][0]["held"] != {"train_0": 2}:
        assert time.monotonic() < deadline, client.processes()
        time.sleep(0.2)
    kill(producer)
    client.seal("train_0")
    assert read_all(client, "train_0") == list(range(128))
    assert client.stats().produced == 128


def test_rows_whose_producer_and_unit_died_are_named_and_can_be_put_again(new_stream, new_peer):
    client = new_stream()
    producer = new_peer(client)
    ray.get(producer.call.remote("put", "train_0", rows_batch(0, 64)), timeout=60)
    client.put("train_0", rows_batch(64, 64))
    client.seal("train_0")
    delivery = client.take("reader", "train_0", 0, COLUMNS, None, deadline_s=30)
    kill(producer)
    kill_pid(client.processes()["units"][0]["pid"])
    with pytest.raises(BlockLostError, match=r"rows 0-63 \(64 rows\) of partition 'train_0' .* storage unit 0 .*again"):
        fetch_until_lost(new_peer, client, delivery)
    client.put_columns("train_0", range(64), rows_batch(0, 64), deadline_s=60)
    assert read_all(client, "train_0") == list(range(128))
    assert client.stats().lost_rows == 64
    assert client.stats().produced == 128


def fetch_until_lost(new_peer, client, delivery):
    """The node notices in its own time that an owner of memory is dead."""
    for _ in range(20):
        new_peer_fetch(new_peer(client), delivery)


def new_peer_fetch(peer, delivery):
    """Fetch in a process that has mapped nothing yet; the stream's own error comes back."""
    try:
        ray.get(peer.call.remote("fetch", delivery, deadline_s=60), timeout=90)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def put_forever(client, rows):
    """Puts batches until killed."""
    for number in range(10_000):
        client.put("train_0", rows_batch(number * rows, rows, length=2000), deadline_s=30)


@pytest.mark.parametrize("seed", range(4))
def test_a_client_killed_during_put_leaves_whole_batches(new_stream, new_peer, seed):
    client = new_stream()
    producer = new_peer(client)
    producer.run.remote(put_forever, 32)
    client.wait_partition("train_0", deadline_s=30)
    time.sleep(random.Random(seed).uniform(0.0, 0.3))
    kill(producer)
    rows = client.seal("train_0")
    assert rows % 32 == 0
    delivery = client.take("reader", "train_0", 0, COLUMNS, None, deadline_s=30)
    assert check_rows(client.fetch(delivery), length=2000) == list(range(rows))
    client.drop("train_0")
    assert client.processes()["units"][0]["held"] == {}
    assert client.stats().in_flight == 0


CALLS = {
    "put": lambda client: client.put("train_0", rows_batch(0, 4), deadline_s=3),
    "put_columns": lambda client: client.put_columns("train_0", range(4), rows_batch(0, 4), deadline_s=3),
    "take": lambda client: client.take("t", "train_0", 0, COLUMNS, 4, deadline_s=3),
    "admit": lambda client: client.admit(1, deadline_s=3),
    "wait_partition": lambda client: client.wait_partition("train_9", deadline_s=3),
    "stats": lambda client: client.stats(deadline_s=3),
    "drop": lambda client: client.drop("train_0", deadline_s=3),
    "seal": lambda client: client.seal("train_0", deadline_s=3),
}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_without_a_controller_every_call_fails_within_its_deadline(new_stream, how):
    client = new_stream(max_staleness=0, groups_per_step=1)
    client.put("train_0", rows_batch(0, 4))
    pid = client.processes()["controller"]
    os.kill(pid, how)
    for name, call in CALLS.items():
        start = time.monotonic()
        with pytest.raises(StreamUnavailableError, match="stream controller"):
            call(client)
        assert time.monotonic() - start < 3 + 3, name
    if how == signal.SIGSTOP:
        os.kill(pid, signal.SIGCONT)
