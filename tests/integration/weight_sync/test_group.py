"""Joining a group between strangers: an absent member is an error that names it, not a hang."""

import threading
import time

import pytest
from torch.distributed import TCPStore

from relax_engine.weight_sync.group import GroupInitError, absent_members, call_off, join_group
from relax_engine.weight_sync.messages import GroupAddress


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_who_does_not_come_is_named_at_the_deadline(store: TCPStore) -> None:
    address = GroupAddress("127.0.0.1", store.port, "three", 3, "gloo")
    started = time.monotonic()
    with pytest.raises(GroupInitError, match=r"'three': ranks \[1, 2\] of 3 did not join \S+ within 0\.3 s"):
        join_group(address, 0, timeout_s=0.3, store=store)
    assert time.monotonic() - started < 2
    assert absent_members(address, store) == [1, 2]


def test_a_called_off_group_lets_its_members_go(store: TCPStore) -> None:
    address = GroupAddress("127.0.0.1", store.port, "off", 2, "gloo")
    threading.Timer(0.2, call_off, (address, store, "engine b is dead")).start()
    started = time.monotonic()
    with pytest.raises(GroupInitError, match="'off' was called off: engine b is dead"):
        join_group(address, 0, timeout_s=30, store=store)
    assert time.monotonic() - started < 5


def test_a_store_that_nobody_hosts_is_an_error() -> None:
    with pytest.raises(GroupInitError, match=r"rank 1 could not join 127\.0\.0\.1:1 within 0\.5 s"):
        join_group(GroupAddress("127.0.0.1", 1, "none", 2, "gloo"), 1, timeout_s=0.5)
