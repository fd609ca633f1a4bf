"""A torch.distributed group between processes that are not ranks of one job.

The trainer hosts a TCP store and is rank 0; engines and forward-only roles join by address. The
group is independent of each process's own default group.
"""

from __future__ import annotations

import datetime
import time

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup, TCPStore
from torch.distributed.distributed_c10d import GroupName

from relax_engine.errors import RelaxError
from relax_engine.weight_sync.messages import GroupAddress

_POLL_S = 0.02
_CALLED_OFF = "called_off"


class GroupInitError(RelaxError):
    """A member did not join in time, or the store could not be reached."""


def default_backend() -> str:
    """`nccl` where CUDA is present, `gloo` elsewhere."""
    return "nccl" if torch.cuda.is_available() else "gloo"


def join_group(address: GroupAddress, rank: int, *, timeout_s: float, store: TCPStore | None = None) -> ProcessGroup:
    """Join `address` as `rank`; returns once every member is there.

    Rank 0 hosts the store (pass `store` to reuse one that already listens).

    Raises:
        GroupInitError: someone did not join within `timeout_s` seconds, or rank 0 called it off.
    """
    timeout = datetime.timedelta(seconds=timeout_s)
    try:
        if store is None:
            store = TCPStore(address.host, address.port, is_master=rank == 0, timeout=timeout, wait_for_workers=False)
        prefixed = PrefixStore(address.name, store)
        # A lost peer must surface by name before gloo's own, anonymous timeout.
        prefixed.set(_member(rank), "here")
        _wait_for_members(prefixed, address, timeout_s)
        group, _ = dist.distributed_c10d._new_process_group_helper(
            address.world_size,
            rank,
            [],
            dist.distributed_c10d.Backend(address.backend),
            prefixed,
            group_name=GroupName(address.name),
            timeout=timeout,
        )
    except (dist.DistError, RuntimeError, TimeoutError) as error:
        raise GroupInitError(
            f"weight-update group {address.name!r}: rank {rank} could not join {address.host}:{address.port} "
            f"within {timeout_s:g} s: {error}"
        ) from error
    dist.distributed_c10d._world.pg_group_ranks[group] = {member: member for member in range(address.world_size)}
    return group


def absent_members(address: GroupAddress, store: TCPStore) -> list[int]:
    """Ranks of `address` that have not come to join."""
    prefixed = PrefixStore(address.name, store)
    return [rank for rank in range(address.world_size) if not prefixed.check([_member(rank)])]


def call_off(address: GroupAddress, store: TCPStore, reason: str) -> None:
    """Let everybody who still waits in `join_group` fail now."""
    PrefixStore(address.name, store).set(_CALLED_OFF, reason)


def _member(rank: int) -> str:
    return f"member_{rank}"


def _wait_for_members(store: PrefixStore, address: GroupAddress, timeout_s: float) -> None:
    keys = [_member(rank) for rank in range(address.world_size)]
    deadline = time.monotonic() + timeout_s
    while not store.check(keys):
        if store.check([_CALLED_OFF]):
            raise GroupInitError(
                f"weight-update group {address.name!r} was called off: {store.get(_CALLED_OFF).decode()}"
            )
        if time.monotonic() > deadline:
            missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
            raise GroupInitError(
                f"weight-update group {address.name!r}: ranks {missing} of {address.world_size} did not join "
                f"{address.host}:{address.port} within {timeout_s:g} s"
            )
        time.sleep(_POLL_S)


def leave_group(group: ProcessGroup) -> None:
    """Destroy a group made by `join_group`."""
    dist.destroy_process_group(group)
