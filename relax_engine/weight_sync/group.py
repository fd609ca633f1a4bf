"""A torch.distributed group between processes that are not ranks of one job.

The trainer hosts a TCP store and is rank 0; engines and forward-only roles join by address, in the way that
`torch.distributed.init_process_group(init_method="tcp://host:port", world_size, rank, group_name)` meets: nothing
passes through the store but what torch itself writes there, so any server that does this can be a member. The
group is independent of each process's own default group.
"""

from __future__ import annotations

import contextlib
import datetime

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup, TCPStore
from torch.distributed.distributed_c10d import GroupName

from relax_engine.errors import RelaxError
from relax_engine.weight_sync.messages import GroupAddress

_CALLED_OFF_S = 1.0


class GroupInitError(RelaxError):
    """A member did not join in time, or the store could not be reached."""


def default_backend() -> str:
    """`nccl` where CUDA is present, `gloo` elsewhere."""
    return "nccl" if torch.cuda.is_available() else "gloo"


class MeetingPoint:
    """The store where the members of one group meet; hosted by rank 0's process, which joins like everybody else."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._server: TCPStore | None = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        self.port = self._server.port

    def absent(self, address: GroupAddress) -> set[int]:
        """Ranks of `address` that have not come to join; empty where the backend leaves no trace of who came."""
        return set() if self._server is None else _absent(self._server, address)

    def close(self) -> None:
        """Close the store: everybody who still waits in `join_group` fails now."""
        self._server = None


def join_group(address: GroupAddress, rank: int, *, timeout_s: float) -> ProcessGroup:
    """Join `address` as `rank`; returns once every member is there (with NCCL: at the first broadcast).

    Raises:
        GroupInitError: someone did not join within `timeout_s` seconds, or rank 0 called it off.
    """
    timeout = datetime.timedelta(seconds=timeout_s)
    store = None
    try:
        store = TCPStore(address.host, address.port, is_master=False, timeout=timeout, wait_for_workers=False)
        group, _ = dist.distributed_c10d._new_process_group_helper(
            address.world_size,
            rank,
            [],
            dist.distributed_c10d.Backend(address.backend),
            PrefixStore(address.name, store),
            group_name=GroupName(address.name),
            timeout=timeout,
        )
    except (dist.DistError, RuntimeError, TimeoutError) as error:
        raise GroupInitError(_failure(address, rank, timeout_s, store, error)) from error
    dist.distributed_c10d._world.pg_group_ranks[group] = {member: member for member in range(address.world_size)}
    return group


def leave_group(group: ProcessGroup) -> None:
    """Destroy a group made by `join_group`."""
    dist.destroy_process_group(group)


def _failure(address: GroupAddress, rank: int, timeout_s: float, store: TCPStore | None, error: BaseException) -> str:
    group, where = f"weight-update group {address.name!r}", f"{address.host}:{address.port}"
    if store is None:
        return f"{group}: rank {rank} could not reach {where} within {timeout_s:g} s: {error}"
    store.set_timeout(datetime.timedelta(seconds=_CALLED_OFF_S))
    try:
        absent = _absent(store, address)
    except (dist.DistError, RuntimeError):
        return f"{group} was called off by rank 0 at {where} while rank {rank} waited in it"
    if absent:
        return f"{group}: ranks {sorted(absent)} of {address.world_size} did not join {where} within {timeout_s:g} s"
    return f"{group}: rank {rank} could not join {where}: {error}"


def _absent(store: TCPStore, address: GroupAddress) -> set[int]:
    """Ranks without a key of their own in gloo's rendezvous, whose last part is the rank."""
    if address.backend != "gloo":
        return set()
    absent = set(range(address.world_size))
    for key in store.list_keys():
        if key.startswith(f"{address.name}/"):
            with contextlib.suppress(ValueError):
                absent.discard(int(key.rpartition("/")[2]))
    return absent
