"""Adding up the metrics of micro-batches and data-parallel ranks.

What lives here: the reduction by name. What does not: any metric's meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor


def reduce_metrics(
    parts: Iterable[Mapping[str, Tensor]], group: dist.ProcessGroup, *, scale: float = 1.0
) -> dict[str, float]:
    """Metrics of all micro-batches on all ranks of `group`, the same on each of them. Collective.

    Names ending in `/max` are maxima, those ending in `/sum` sums of counts, and all others weighted sums,
    which take the `scale` that their weights leave out. A micro-batch, or a rank, may lack a name.
    """
    names: list[str] = []
    values: list[Tensor] = []
    for part in parts:
        names.extend(part)
        values.extend(part.values())
    numbers = torch.stack([value.detach().float() for value in values]).tolist() if values else []
    own: dict[str, float] = {}
    _merge(own, zip(names, numbers, strict=True))
    if group.size() == 1:
        return _scaled(own, scale)
    gathered: list[dict[str, float]] = [{} for _ in range(group.size())]
    dist.all_gather_object(gathered, own, group=group)
    total: dict[str, float] = {}
    for rank_metrics in gathered:
        _merge(total, rank_metrics.items())
    return _scaled(total, scale)


def _scaled(metrics: dict[str, float], scale: float) -> dict[str, float]:
    return {name: value if name.endswith(("/max", "/sum")) else value * scale for name, value in metrics.items()}


def _merge(into: dict[str, float], items: Iterable[tuple[str, float]]) -> None:
    for name, value in items:
        if name not in into:
            into[name] = value
        elif name.endswith("/max"):
            into[name] = max(into[name], value)
        else:
            into[name] += value
