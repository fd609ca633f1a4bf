"""The training state in Megatron's distributed checkpoint format (`torch_dist`).

What lives here: what a checkpoint directory holds, writing and reading one. What does not: which
directories exist and which is complete (`relax_engine.checkpoint`).

A directory holds the model under Megatron's own keys (`decoder.layers.self_attention.linear_qkv.weight`,
layers stacked in dimension 0), optimizer state under `optimizer.state.*`, one RNG object per rank, and in
`common.pt` the iteration, schedule, layout and `extra`. It can be loaded under another tensor- or
data-parallel size; RNG state is restored only under the same one, and seeded afresh otherwise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import re
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.dict_utils import (
    dict_list_map_inplace,
    extract_matching_values,
    merge,
    nested_values,
)
from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedObject
from megatron.core.dist_checkpointing.strategies import torch as torch_strategy
from megatron.core.dist_checkpointing.utils import extract_sharded_base
from megatron.core.optimizer import MegatronOptimizer
from torch import Tensor

from relax_engine.backends.megatron.deferred_writes import DeferredWrites
from relax_engine.checkpoint.dcp_writer import ReproducibleWriter

Plain = Any
_MAIN_PARAMETER = re.compile(r"optimizer\.state\.(param|fp32_param)\.(.*)")
_SHARDING = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}


@contextlib.contextmanager
def _quiet_deprecations() -> Iterator[None]:
    """Megatron 0.16 reads and writes through torch APIs that torch announces it will remove."""
    with warnings.catch_warnings():
        for message in (".*deprecating ShardedTensor", "`load_state_dict` is deprecated"):
            warnings.filterwarnings("ignore", message=message, category=FutureWarning)
        yield


class InProcessSaveStrategy(torch_strategy.TorchDistSaveShardedStrategy):
    """Writes with torch's own file writer, in this process.

    Megatron's writer forks worker processes even for a synchronous save; forked from a process with
    threads (Ray, gRPC) they may hang, and they outlive a trainer that is killed.
    """

    def __init__(self, writes: DeferredWrites | None = None) -> None:
        """With `writes`, data files are left there for later."""
        super().__init__("torch_dist", 1)
        self._writes = writes

    def save(self, sharded_state_dict: dict[str, Any], checkpoint_dir: str | Path) -> None:
        """Write all shards of which this rank is the main owner. Collective."""
        state, _, _ = torch_strategy._replace_state_dict_keys_with_sharded_keys(
            sharded_state_dict, self.keep_only_main_replica
        )
        writer = ReproducibleWriter(checkpoint_dir, sync_files=False)  # the directory is flushed when it is committed
        if self._writes is not None:
            writer.fs = self._writes.files
        dcp.save(
            torch_strategy.mcore_to_pyt_state_dict(state, False),
            storage_writer=writer,
            planner=torch_strategy.MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
        )


def require_plain(value: Plain, where: str = "extra") -> None:
    """Check that `value` can be read back without unpickling code.

    Raises:
        TypeError: names the place and type of what is neither a number, string, None, tensor, nor a
            list, tuple or dict of such.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            require_plain(key, f"a key of {where}")
            require_plain(item, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            require_plain(item, f"{where}[{index}]")
    elif type(value) not in (str, int, float, bool, bytes, type(None), Tensor):
        raise TypeError(f"{where} is a {type(value).__name__}; a checkpoint keeps plain values and tensors only")


def save_state(directory: str | Path, state: dict[str, Any], writes: DeferredWrites | None = None) -> None:
    """Write `state` (plain values and Megatron sharded objects) to an existing directory. Collective.

    With `writes`, data files are left there, and nothing of `state` is needed any more.
    """
    with _quiet_deprecations():
        dist_checkpointing.save(state, str(directory), sharded_strategy=InProcessSaveStrategy(writes))


def load_common(directory: str | Path) -> dict[str, Any]:
    """The plain part of a checkpoint.

    Raises:
        FileNotFoundError: `directory` is not a checkpoint directory.
    """
    if not dist_checkpointing.check_is_distributed_checkpoint(str(directory)):
        raise FileNotFoundError(f"{directory} is not a complete distributed checkpoint (it has no metadata.json)")
    return dist_checkpointing.load_common_state_dict(str(directory))


def load_state(directory: str | Path, template: dict[str, Any]) -> dict[str, Any]:
    """Fill a template of sharded objects from `directory`. Collective."""
    with _quiet_deprecations():
        return dist_checkpointing.load(template, str(directory))


def optimizer_state(
    optimizer: MegatronOptimizer, model_state: dict[str, Any], *, loading: bool
) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The optimizer's sharded tensors, or with `loading` the template to load them into, and its plain part.

    The plain part differs from layout to layout and is not stored: it is put together anew from the settings and the
    number of steps (`with_steps`).
    """
    _create_state(optimizer)
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    metadata = {**_SHARDING, "dp_cp_group": group, "distrib_optim_fully_reshardable_mem_efficient": True}
    return extract_sharded_base(optimizer.sharded_state_dict(model_state, is_loading=loading, metadata=metadata))


def locate_main_parameters(template: dict[Any, Any], stored: Collection[str]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Look for float32 main parameters in `template` where the kind of optimizer that wrote the checkpoint keeps them.

    The distributed optimizer stores them as `param`, that of bfloat16 parameters as `fp32_param`; float32 parameters
    are their own, and are not stored a second time.

    Returns:
        The template of what the model's own tensors give, and that of all else. They are loaded one after the other,
        since a checkpoint gives a tensor once.

    Raises:
        ValueError: the checkpoint's parameters are float32, and the run's are not.
    """

    def located(value: Any) -> Any:
        match = _MAIN_PARAMETER.fullmatch(getattr(value, "key", ""))
        if match is None or value.key in stored:
            return value
        names = [f"optimizer.state.{kind}.{match[2]}" for kind in ("param", "fp32_param")]
        found = next((name for name in names if name in stored), match[2])
        if found == match[2] and match[1] == "fp32_param":
            raise ValueError(
                "the checkpoint is of a float32 run, and this one is bfloat16: its optimizer cannot go on here; "
                "take its weights alone (--only-load-weight)"
            )
        return dataclasses.replace(value, key=found)

    dict_list_map_inplace(located, template)
    if all(value.key.startswith("optimizer.") for value in nested_values(template)):
        return {}, template
    own, others = extract_matching_values(template, lambda value: not value.key.startswith("optimizer."))
    return own, others


def with_steps(plain: dict[Any, Any], tensors: dict[Any, Any], steps: int) -> dict[Any, Any]:
    """The state of an optimizer that has taken `steps` steps, from the two parts of `optimizer_state`."""
    dict_list_map_inplace(_unwrapped, plain)
    chained = plain if 0 in plain else {0: plain}
    for part in chained.values():
        if "optimizer" in part:  # the distributed optimizer, or that of bfloat16 parameters
            for group in part["optimizer"]["param_groups"]:
                group["step"] = steps
        if "param_state_sharding_type" not in part:
            part.get("optimizer", part).setdefault("state", {})["common_step"] = torch.tensor(float(steps))
    whole: dict[Any, Any] = merge(plain, tensors)
    return whole


def only_tensors(loaded: dict[Any, Any]) -> dict[Any, Any]:
    """An optimizer's tensors without plain values, which checkpoints of earlier versions have among them."""
    tensors, _ = extract_matching_values(loaded, lambda value: isinstance(value, Tensor) and value.dim() > 0)
    return dict(tensors)


def _unwrapped(value: Any) -> Any:
    return value.unwrap() if isinstance(value, LocalNonpersistentObject) else value


def _create_state(optimizer: MegatronOptimizer) -> None:
    """Give torch AdamW before its first step the state that it starts with.

    Saved without it, an optimizer that has taken no step could not be loaded, and the distributed optimizer expects
    it when loading.
    """
    for inner in (chained.optimizer for chained in optimizer.chained_optimizers):
        for group in inner.param_groups:
            for parameter in group["params"]:
                if not inner.state[parameter]:
                    zeros = [torch.zeros_like(parameter) for _ in range(2)]
                    inner.state[parameter] = {"step": torch.tensor(0.0), "exp_avg": zeros[0], "exp_avg_sq": zeros[1]}


def rng_object(values: dict[str, Tensor]) -> ShardedObject:
    """This rank's RNG state as one object of the checkpoint, keyed by its model- and data-parallel place."""
    places = (
        (parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_world_size()),
        (parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()),
        (
            parallel_state.get_data_parallel_rank(with_context_parallel=True),
            parallel_state.get_data_parallel_world_size(with_context_parallel=True),
        ),
    )
    ranks, sizes = zip(*places, strict=True)
    return ShardedObject("rng_state", values, sizes, ranks, replica_id=0)


def world_shape() -> dict[str, int]:
    """The layout under which RNG state is meaningful."""
    return {
        "tensor_parallel": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline_parallel": parallel_state.get_pipeline_model_parallel_world_size(),
        "context_parallel": parallel_state.get_context_parallel_world_size(),
        "data_parallel": parallel_state.get_data_parallel_world_size(),
        "world_size": dist.get_world_size(),
    }


def get_rng_state() -> dict[str, Tensor]:
    """States of all random number generators of this process, as tensors."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([version, *words], dtype=torch.int64),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy_keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "numpy_rest": torch.tensor([position, has_gauss, cached], dtype=torch.float64),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    tracked = tensor_parallel.get_cuda_rng_tracker().get_states()
    return state | {f"megatron/{name}": value for name, value in tracked.items()}


def set_rng_state(state: dict[str, Tensor]) -> None:
    """Restore what `get_rng_state` returned."""
    torch.set_rng_state(state["torch"])
    version, *words = state["python"].tolist()
    gauss = state["python_gauss"].tolist()
    random.setstate((version, tuple(words), gauss[0] if gauss else None))
    position, has_gauss, cached = state["numpy_rest"].tolist()
    keys = state["numpy_keys"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, int(position), int(has_gauss), cached))
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
    prefix = "megatron/"
    tracked = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
    tensor_parallel.get_cuda_rng_tracker().set_states(tracked)
