"""A tensor-parallel group that pushes weights: retries must find all ranks, and dead ranks must be named."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.launch import launch_engine
from relax_engine.components.train_group import RankLostError, TrainGroup, TrainGroupError
from relax_engine.core.cluster import ray_cluster
from relax_engine.core.placement import Placement, place
from relax_engine.weight_sync.receivers import EngineReceiver

TIMEOUT = 60.0


def cluster() -> Any:
    """The session's cluster, as a run finds it."""
    return ray_cluster(None)


def test_more_ranks_than_cores_shrink_and_still_fit(ray_cluster: None) -> None:
    with cluster() as found:
        placement = place({"actor": 20, "rollout": 4, "advantages": 0}, (), found, timeout_s=30)
    try:
        assert [len(slots) for slots in placement.slots.values()] == [20, 4, 0]
        assert sum(slot.num_cpus for slots in placement.slots.values() for slot in slots) <= 0.9 * found.cpus + 1e-6
        assert placement.slots["actor"][0].group is not placement.slots["rollout"][0].group
    finally:
        placement.release()


@pytest.fixture(scope="module")
def placement(ray_cluster: None) -> Iterator[Placement]:
    with cluster() as found:
        placement = place({"actor": 2, "rollout": 1}, ("actor", "rollout"), found, timeout_s=30)
    yield placement
    placement.release()


@pytest.fixture(scope="module")
def group(placement: Placement, tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainGroup]:
    config = tiny.config(
        tmp_path_factory.mktemp("group"),
        tensor_model_parallel_size=2,
        resource={"actor": [1, 2], "rollout": [1, 1]},
        update_weight_buffer_size=1 << 20,
    )
    group = TrainGroup(config, placement.slots["actor"], role="actor", trainable=True, timeout_s=TIMEOUT)
    group.load_hf(str(tiny.model))
    yield group
    group.close()


def test_roles_that_share_devices_get_the_same_bundles(placement: Placement) -> None:
    actor, rollout = placement.slots["actor"], placement.slots["rollout"]
    assert [slot.bundle for slot in actor] == [0, 1]
    assert rollout[0].group is actor[0].group
    assert len(placement.groups) == 1
    # Both fit into a bundle at the same time.
    assert actor[0].num_cpus + rollout[0].num_cpus <= placement.groups[0].bundle_specs[0]["CPU"] <= 1.0
    assert actor[0].num_gpus == 0


async def test_a_push_that_is_repeated_gathers_on_all_ranks(group: TrainGroup, tiny: Any, tmp_path: Path) -> None:
    """The second engine serves a shorter model and refuses the third layer, in the middle of the buckets."""
    import asyncio

    from transformers import AutoConfig, AutoModelForCausalLM

    short = tmp_path / "short"
    config = AutoConfig.from_pretrained(tiny.model, num_hidden_layers=2)
    config.layer_types = config.layer_types[:2]
    AutoModelForCausalLM.from_config(config).save_pretrained(short)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (short / name).write_bytes((tiny.model / name).read_bytes())
    with launch_engine(tiny.model) as good, launch_engine(short) as bad:
        receivers = [EngineReceiver(engine.url, TIMEOUT) for engine in (good, bad)]
        async with EngineClient(good.url, timeout_s=TIMEOUT) as client:
            before = await client.weights_checksum()
            report = await asyncio.to_thread(group.push_weights, receivers, 1)
            assert report.committed == [good.url]
            assert "is not a parameter" in report.quarantined[bad.url]
            assert report.buckets > 1
            report = await asyncio.to_thread(group.push_weights, receivers[:1], 2)
            assert report.committed == [good.url]
            # Gathered from two slices, the weights are bit for bit those that were loaded.
            assert await client.weights_checksum() == before
            assert (await client.model_info())["weight_version"] == "2"


def test_what_a_rank_raises_comes_with_its_number_and_its_log(group: TrainGroup) -> None:
    """verl#275: not just that an actor died."""
    with pytest.raises(TrainGroupError) as raised:
        group.discard_snapshot("never kept")
    assert not isinstance(raised.value, RankLostError)
    message = str(raised.value)
    assert re.search(r"actor: rank [01] failed in discard_snapshot\(\): KeyError: 'never kept'", message)
    assert "last lines of its log /" in message


def test_every_rank_says_where_it_is(group: TrainGroup) -> None:
    stacks = group.inspect()
    assert {name.split(" thread")[0] for name in stacks} == {"rank 0", "rank 1"}
    assert sorted(group.processes) == ["rank 0", "rank 1"]


def test_a_dead_rank_is_named_while_the_other_waits_for_it(group: TrainGroup) -> None:
    import ray

    process = psutil.Process(group.processes["rank 1"])
    ray.kill(group._ranks[1])
    process.wait(30)
    with pytest.raises(RankLostError, match=r"actor: the process of rank 1 died"):
        group.snapshot("any")
