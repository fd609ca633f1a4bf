"""Partitions of recorded samples."""

from pathlib import Path

import pytest

from relax_engine.observe.bundle import BundleError, write_samples
from relax_engine.rollout.admission import AdmissionGate
from relax_engine.rollout.recorded_rollout import RecordedRollout
from relax_engine.types import Sample


async def test_groups_take_the_numbers_of_their_slots(tmp_path: Path) -> None:
    template = f"{tmp_path}/{{rollout_id}}.jsonl"
    gate = AdmissionGate(max_staleness=0, groups_per_step=2)
    gate.recover(3, next_group=6)

    async def admit(count: int) -> list[int]:
        return gate.try_admit(count, 0.0) or []

    write_samples(template, 3, [[Sample(group_index=n, index=2 * n + i) for i in range(2)] for n in (17, 12)])
    flow = RecordedRollout(template, 2, admit)
    await flow.restore(6, [], {})
    groups = [group async for group in flow.partition(3)]
    assert [[sample.group_index for sample in group] for group in groups] == [[6, 6], [7, 7]]
    assert [sample.index for group in groups for sample in group] == [34, 35, 24, 25]
    assert flow.state() == {"next_group": 8, "pending": [], "groups": []}
    write_samples(template, 4, groups[:1])
    with pytest.raises(BundleError, match="recorded rollout 4 has 1 groups, --rollout-batch-size is 2"):
        [group async for group in flow.partition(4)]
    with pytest.raises(BundleError, match="no recorded rollout 5"):
        [group async for group in flow.partition(5)]
