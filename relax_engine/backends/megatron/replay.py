"""Choices of experts between the routers of all ranks and the rows of a batch.

What lives here: cutting a column of earlier choices to a rank's tokens, putting together what the routers of all ranks
chose, and counting what a replay changed. What does not: choosing (`relax_engine.backends.routing`), the router
(`experts.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from relax_engine.backends.megatron.context import Share
from relax_engine.checkpoint.model_spec import ModelSpec
from relax_engine.config.layout import ParallelLayout
from relax_engine.stream.columns import OWN_EXPERTS, ROUTED_EXPERTS, ColumnBatch


class Recorded(Protocol):
    """A micro-batch whose routers were asked for their choices; see `micro_batch.MicroBatch`."""

    @property
    def rows(self) -> ColumnBatch | None:
        """Its rows."""

    @property
    def share(self) -> Share:
        """This rank's tokens."""

    @property
    def stand_ins(self) -> np.ndarray:
        """The packed token that is computed in the place of each."""

    @property
    def choices(self) -> Mapping[int, Tensor]:
        """The experts of this rank's tokens, `[tokens, k]` by layer."""


def replayed_choices(rows: ColumnBatch | None, own: Share, spec: ModelSpec) -> np.ndarray | None:
    """Earlier choices of experts for this rank's tokens, int16 `[tokens, layers, k]`; None where rows bring none.

    -1 stands where the router is to choose. A shared prompt has those of its first row.

    Raises:
        ValueError: the rows' choices are those of another model.
    """
    assert spec.experts is not None
    name = next((name for name in (ROUTED_EXPERTS, OWN_EXPERTS) if rows is not None and name in rows), None)
    if rows is None or name is None:
        return None
    sent = rows[name].values
    width = spec.num_layers * spec.experts.top_k
    if sent.ndim != 2 or sent.shape[1] != width or len(sent) != len(rows["tokens"].values):
        raise ValueError(
            f"{name} has shape {sent.shape}; {len(rows['tokens'].values)} tokens of this model have "
            f"{width} experts each ({spec.num_layers} layers of {spec.experts.top_k})"
        )
    known = (own.sources >= 0) & (own.sources < len(sent))
    taken = np.where(known[:, None], sent[np.where(known, own.sources, 0)], np.int16(-1))
    return taken.reshape(len(taken), spec.num_layers, -1)


def recorded_choices(
    micro_batches: Iterable[Recorded], spec: ModelSpec, layout: ParallelLayout, device: torch.device
) -> np.ndarray:
    """The experts that the tokens of all rows were sent to, int16 `[tokens, layers * k]`, the same on the ranks of a
    replica. Collective over these.

    -1 stands in layers without experts, and for the last token of each response, which is not computed.
    """
    assert spec.experts is not None
    plan = [each for each in micro_batches if each.rows is not None]
    shape = (spec.num_layers, spec.experts.top_k)
    empty = torch.zeros(0, *shape, dtype=torch.int32, device=device)
    found = torch.cat([empty, *(_of_this_rank(each, shape, layout, device) for each in plan)])
    for group in (
        parallel_state.get_tensor_model_parallel_group(),
        parallel_state.get_context_parallel_group(),
        parallel_state.get_pipeline_model_parallel_group(),
    ):
        if group.size() > 1:
            dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    choices = (found.flatten(1) - 1).cpu().numpy().astype(np.int16)
    parts, first = [choices[:0]], 0
    for each in plan:
        assert each.rows is not None
        offsets = each.rows["tokens"].offsets
        assert offsets is not None
        part = choices[first : first + offsets[-1]][each.stand_ins[: offsets[-1]]]
        part[offsets[1:][each.rows["response_lengths"].values > 0] - 1] = -1
        parts.append(part)
        first += int(offsets[-1])
    return np.concatenate(parts)


def _of_this_rank(
    micro_batch: Recorded, shape: tuple[int, int], layout: ParallelLayout, device: torch.device
) -> Tensor:
    """One more than each expert chosen here, int32 `[tokens of the rows, layers, k]`; 0 for what others compute."""
    assert micro_batch.rows is not None
    count, sources = len(micro_batch.rows["tokens"].values), micro_batch.share.sources
    found = torch.zeros(count, *shape, dtype=torch.int32, device=device)
    rank = parallel_state.get_tensor_model_parallel_rank() if layout.sequence_parallel else 0
    for layer, picked in micro_batch.choices.items():
        places = sources[rank * len(picked) : (rank + 1) * len(picked)]
        known = torch.from_numpy((places >= 0) & (places < count)).to(device)
        found[torch.from_numpy(places).to(device)[known], layer] = picked[known].int() + 1
    return found


class ReplayCount:
    """Choices replayed in training since the last step, and those among them that the router would have made otherwise.

    A choice is that of one layer for one token, whatever the order of its experts.
    """

    def __init__(self, device: torch.device) -> None:
        self._totals = torch.zeros(2, dtype=torch.int64, device=device)

    def add(self, own: Tensor, sent: Tensor) -> None:
        """Count the router's `own` choices and those in their place, `[tokens, k]`; -1 where there are none."""
        replayed = sent[:, 0] >= 0
        changed = (own.sort(dim=-1).values != sent.sort(dim=-1).values).any(dim=-1) & replayed
        self._totals += torch.stack([changed.sum(), replayed.sum()])

    def take(self) -> dict[str, float]:
        """`routing_replay/changed`: the share of changed ones of all ranks; {} where none was replayed. Collective."""
        dist.all_reduce(self._totals)
        changed, replayed = self._totals.tolist()
        self._totals.zero_()
        return {"routing_replay/changed": changed / replayed} if replayed else {}
