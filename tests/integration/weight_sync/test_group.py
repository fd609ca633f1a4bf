"""Joining a group between strangers: an absent member is an error that names it, not a hang."""

import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from relax_engine.weight_sync.group import GroupInitError, MeetingPoint, join_group, leave_group
from relax_engine.weight_sync.messages import GroupAddress


@pytest.fixture
def meeting() -> MeetingPoint:
    return MeetingPoint("127.0.0.1")


def test_who_does_not_come_is_named_at_the_deadline(meeting: MeetingPoint) -> None:
    address = GroupAddress("127.0.0.1", meeting.port, "three", 3, "gloo")
    started = time.monotonic()
    with pytest.raises(GroupInitError, match=r"'three': ranks \[1, 2\] of 3 did not join \S+ within 0\.3 s"):
        join_group(address, 0, timeout_s=0.3)
    assert time.monotonic() - started < 2
    assert meeting.absent(address) == {1, 2}


def test_a_called_off_group_lets_its_members_go(meeting: MeetingPoint) -> None:
    address = GroupAddress("127.0.0.1", meeting.port, "off", 2, "gloo")
    threading.Timer(0.2, meeting.close).start()
    started = time.monotonic()
    with pytest.raises(GroupInitError, match=r"'off' was called off by rank 0 at \S+ while rank 1 waited"):
        join_group(address, 1, timeout_s=30)
    assert time.monotonic() - started < 5


def test_a_store_that_nobody_hosts_is_an_error() -> None:
    with pytest.raises(GroupInitError, match=r"rank 1 could not reach 127\.0\.0\.1:1 within 0\.5 s"):
        join_group(GroupAddress("127.0.0.1", 1, "none", 2, "gloo"), 1, timeout_s=0.5)


_STRANGER = """
import datetime, sys, torch
from torch.distributed import PrefixStore
from torch.distributed.distributed_c10d import Backend, _new_process_group_helper, rendezvous
url, name, timeout = sys.argv[1], sys.argv[2], datetime.timedelta(seconds=20)
store, rank, size = next(rendezvous(url, rank=1, world_size=2, timeout=timeout))
store.set_timeout(timeout)
group, _ = _new_process_group_helper(
    size, rank, [], Backend("gloo"), PrefixStore(name, store), group_name=name, timeout=timeout
)
received = torch.zeros(3)
options = torch.distributed.BroadcastOptions()
group.broadcast([received], options).wait()
print(received.tolist())
"""


def test_a_member_needs_nothing_but_what_torch_itself_does(meeting: MeetingPoint) -> None:
    """SGLang's server joins by rendezvous at tcp://host:port under a prefix, the group's name; so does this one."""
    address = GroupAddress("127.0.0.1", meeting.port, "plain", 2, "gloo")
    command = [sys.executable, "-c", _STRANGER, f"tcp://{address.host}:{address.port}", address.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stranger:
        group = join_group(address, 0, timeout_s=20)
        dist.broadcast(torch.tensor([1.0, 2.0, 3.0]), 0, group)
        assert stranger.communicate(timeout=20)[0] == "[1.0, 2.0, 3.0]\n"
    leave_group(group)
