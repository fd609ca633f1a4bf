"""Which devices each role gets.

A device is a GPU where the cluster has GPUs and a share of a CPU core elsewhere. Roles that share
devices (colocate) share one placement group; every other role has its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from relax_engine.core.cluster import Cluster, ClusterError

# What all roles on one device claim of it together.
_SHARED_CLAIM = 0.9
# What a further engine claims of a core where there are fewer cores than ranks, which share them anyway.
_CROWDED_CLAIM = 0.01


@dataclass(frozen=True, slots=True)
class Slot:
    """One device of one role: where to start an actor, and what it claims."""

    group: PlacementGroup
    bundle: int
    num_cpus: float
    num_gpus: float

    def actor_options(self) -> dict[str, object]:
        """Options for a Ray actor that uses this device."""
        return {
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, self.bundle),
        }

    def release(self) -> None:
        """Give back a device that has a placement group of its own."""
        remove_placement_group(self.group)


@dataclass(frozen=True, slots=True)
class Placement:
    """Slots by role."""

    slots: Mapping[str, Sequence[Slot]]
    groups: Sequence[PlacementGroup]

    def release(self) -> None:
        """Give the devices back."""
        for group in self.groups:
            remove_placement_group(group)


def place(devices: Mapping[str, int], shared: Sequence[str], cluster: Cluster, *, timeout_s: float) -> Placement:
    """Reserve `devices[role]` devices for every role; roles in `shared` sit on the same ones.

    Raises:
        ClusterError: the cluster has too few GPUs, or did not grant them within `timeout_s`.
    """
    pools: dict[tuple[str, ...], int] = {}
    together = tuple(role for role in devices if role in shared)
    if together:
        pools[together] = max(devices[role] for role in together)
    pools.update({(role,): count for role, count in devices.items() if role not in shared and count > 0})
    total = sum(pools.values())
    if cluster.accelerated and total > cluster.gpus:
        raise ClusterError(
            f"--resource asks for {total} GPUs ({dict(devices)}), the cluster has {cluster.gpus:g}: "
            "give roles fewer devices, or use --colocate so that actor and rollout share theirs"
        )
    # CPU ranks may be more than cores: they then share cores, so claims shrink to fit.
    cpu = 1.0 if cluster.accelerated else min(1.0, 0.9 * cluster.cpus / max(total, 1))
    gpu = 1.0 if cluster.accelerated else 0.0
    slots: dict[str, list[Slot]] = {role: [] for role in devices}
    groups = []
    for roles, count in pools.items():
        bundle = {"CPU": cpu, **({"GPU": gpu} if gpu else {})}
        group = placement_group([bundle] * count, strategy="PACK")
        groups.append(group)
        ready, _ = ray.wait([group.ready()], timeout=timeout_s)
        if not ready:
            raise ClusterError(
                f"no devices for {', '.join(roles)} within {timeout_s:g} s: wanted {count} x {bundle}, "
                f"the cluster has {ray.cluster_resources()}"
            )
        claim = _SHARED_CLAIM / len(roles) if len(roles) > 1 else 1.0
        for role in roles:
            slots[role] = [Slot(group, index, cpu * claim, gpu * claim) for index in range(devices[role])]
    return Placement(slots, groups)


async def place_more(like: Slot, timeout_s: float) -> Slot:
    """Reserve one device more, as large as `like`, in a placement group of its own, once the cluster has room.

    What is asked for meanwhile is what makes Ray's autoscaler add a node.

    Raises:
        ClusterError: there was no room within `timeout_s`; nothing is asked for any more.
    """
    cpu = like.num_cpus if like.num_gpus or like.num_cpus >= 1.0 else _CROWDED_CLAIM
    bundle = {"CPU": cpu, **({"GPU": like.num_gpus} if like.num_gpus else {})}
    group = placement_group([bundle], strategy="PACK")
    try:
        await asyncio.wait_for(group.ready(), timeout_s)
    except BaseException as error:
        remove_placement_group(group)
        if isinstance(error, TimeoutError):
            raise ClusterError(
                f"no room for an engine within {timeout_s:g} s: wanted {bundle}, free are {ray.available_resources()}"
            ) from error
        raise
    return Slot(group, 0, cpu, like.num_gpus)
