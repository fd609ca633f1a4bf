"""A stream that keeps itself in a directory: its controller may die, and both holders of a block."""

import threading

import ray
from stream_batches import check_rows, rows_batch
from stream_processes import kill, kill_pid

COLUMNS = ("tokens", "row")


def test_a_killed_controller_goes_on_where_it_was(new_stream, tmp_path):
    client = new_stream(directory=tmp_path, max_staleness=1, groups_per_step=4)
    assert client.admit(4) == [0, 1, 2, 3]
    client.put("train_0", rows_batch(0, 8))
    first = client.fetch(client.take("reader", "train_0", 0, COLUMNS, 4, deadline_s=30))
    waiting: list = []
    reader = threading.Thread(
        target=lambda: waiting.append(client.take("other", "train_1", 0, COLUMNS, 8, deadline_s=60))
    )
    reader.start()
    kill_pid(client.processes()["controller"])
    # Whatever was acknowledged is there, calls go on meanwhile, and a wait that was under way ends as it would have.
    assert client.admit(4, deadline_s=60) == [4, 5, 6, 7]
    again = client.fetch(client.take("reader", "train_0", 0, COLUMNS, 4, deadline_s=30))
    assert again["row"].values.tolist() == first["row"].values.tolist() == [0, 1, 2, 3]
    client.put("train_1", rows_batch(8, 8))
    reader.join(60)
    assert check_rows(client.fetch(waiting[0])) == list(range(8, 16))
    stats = client.stats()
    assert (stats.produced, stats.in_flight, stats.groups_occupied, stats.duplicate_rows) == (16, 16, 8, 0)


def test_rows_survive_everybody_who_held_them(new_stream, new_peer, tmp_path):
    client = new_stream(directory=tmp_path)
    producer = new_peer(client)
    ray.get(producer.call.remote("put", "train_0", rows_batch(0, 64)), timeout=60)
    client.seal("train_0")
    delivery = client.take("reader", "train_0", 0, COLUMNS, None, deadline_s=30)
    kill(producer)
    processes = client.processes()
    kill_pid(processes["units"][0]["pid"])
    fresh = new_peer(client)
    batch = ray.get(fresh.call.remote("fetch", delivery, deadline_s=60), timeout=90)
    assert check_rows(batch) == list(range(64))
    kill_pid(client.processes()["units"][0]["pid"])
    kill_pid(processes["controller"])
    delivery = client.take("reader", "train_0", 0, COLUMNS, None, deadline_s=60)
    assert check_rows(client.fetch(delivery, deadline_s=60)) == list(range(64))
    assert client.stats().lost_rows == 0


def test_a_trained_partition_can_be_taken_until_a_step_is_finished_for_good(new_stream, tmp_path):
    client = new_stream(directory=tmp_path)
    for number in range(2):
        client.put(f"train_{number}", rows_batch(8 * number, 8))
        client.seal(f"train_{number}")
        client.take("actor_train", f"train_{number}", 0, COLUMNS, None, deadline_s=30)
        client.finish_step(f"train_{number}", retain=True)
    assert client.processes()["units"][0]["held"] == {}
    delivery = client.take("actor_train", "train_0", 0, COLUMNS, None, deadline_s=30)
    assert check_rows(client.fetch(delivery)) == list(range(8))
    client.finish_step("train_0", retain=True)
    client.put("train_2", rows_batch(16, 8))
    stats = client.finish_step("train_2")
    assert (stats.trained, stats.in_flight, stats.nbytes) == (24, 0, 0)
    assert client.processes()["units"][0]["held"] == {}
    assert not [path for path in (tmp_path / "blocks").rglob("*") if path.is_file()]


def test_nothing_that_a_controller_needs_again_is_in_the_object_store(new_stream, tmp_path, capfd):
    """Ray says so of an actor that it could not start a second time once its first arguments are gone."""
    new_stream(directory=tmp_path, num_data_storage_units=2)
    assert "object store" not in capfd.readouterr().err
