"""Which roles run, where, and in which mode."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from relax_engine.config.sections.base import JsonObject, Section, flag, group, read_literal, read_mapping

Role = Literal["actor", "critic", "rollout", "reference", "actor_fwd", "advantages", "teacher", "genrm"]


def _read_resource(value: Any) -> Any:
    return read_literal(value) if isinstance(value, str) else value


Resource = Annotated[
    dict[Role, tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)]]], BeforeValidator(_read_resource)
]


class Resources(Section):
    """Roles, devices and the execution mode."""

    resource: Resource = group(lambda: {"actor": (1, 1), "rollout": (1, 1)})
    """Devices per role as JSON, `{"role": [num_serves, devices]}`. A device is one accelerator where CUDA is
    present, and one single-threaded CPU rank (about one core) where it is not; `advantages` may have 0."""

    colocate: bool = False
    """Actor and rollout share devices and take turns, strictly on-policy. It is the mode without any mode flag too."""

    fully_async: bool = False
    """Every role runs on its own devices at the same time, and samples stream between them."""

    hybrid: bool = False
    """Rollout on its own devices; reference log-probs, old log-probs and advantages are computed inside the actor,
    on the samples that stream in."""

    true_on_policy_mode: bool = False
    """Take the policy that is being trained for the old policy, so that nobody computes old log-probs and no
    actor_fwd runs; samples of older weights are then corrected by `--use-tis` alone. It is so without the flag too
    where both policies are the same: one step per rollout, on samples without staleness or log-probs made by the
    actor itself."""

    keep_old_actor: bool = False
    """Compute old log-probs with copies of the published weights (in host memory, one per version in use), each
    sample with the version that generated its first token, instead of with the present weights."""

    deterministic: bool = False
    """The same flags and seed give the same token ids, rewards and losses: a rollout is sampled in whole waves, also
    on engines of their own, and only deterministic kernels are used. Needs `--max-staleness 0`."""

    offload_rollout: bool | None = None
    """Engines give their cache memory back after each rollout. Default: on where they share devices (colocate)."""

    ref_actor_config: JsonObject = group(dict)
    """Fields that differ for the reference, actor_fwd and teacher roles, as JSON by field name
    (`{"tensor_model_parallel_size": 1, "max_tokens_per_gpu": 16384}`)."""

    rollout_num_gpus_per_engine: int = flag(1, ge=1, unit="devices")
    """Devices that one inference engine spans (its tensor parallelism)."""

    num_data_storage_units: int = flag(1, ge=1)
    """Storage processes that hold the blocks of the sample stream."""

    train_env_vars: Annotated[dict[str, str], BeforeValidator(read_mapping)] = group(dict)
    """Environment variables of the training processes only, as JSON (`{"OMP_NUM_THREADS": "1"}`)."""

    ray_address: str | None = None
    """Ray cluster to attach to (`auto`, `host:port`, `ray://host:port`); without it a local one is started."""
