"""From a configuration file and a task's inputs to the `RunConfig` of one step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tasks.store import beside_artifacts
from tasks.types import SupervisedOptions, TrainingOverrides

if TYPE_CHECKING:
    from flytekit.types.file import FlyteFile

    from relax_engine.config import RunConfig

SAVE_INTERVAL = 50  # rollouts; without a checkpoint there would be nothing to resume from or to export
DUMPS = "details"
"""Where a run with `dump_details` writes rollouts and training steps, in its directory and in its record."""
DATASET_COLUMNS = {"input_key": "prompt", "label_key": "label", "metadata_key": "metadata", "apply_chat_template": True}


def training_config(
    file: FlyteFile,
    overrides: TrainingOverrides,
    *,
    model: Path,
    checkpoint: Path,
    dataset: Path,
    work: Path,
    seed: int,
) -> RunConfig:
    """The configuration of the RL run; it saves to, and resumes from, `work`, or the artifact store's bucket.

    Raises:
        ConfigError: the file or a value cannot be used.
    """
    changes: dict[str, Any] = {
        "hf_checkpoint": str(model),
        "ref_load": str(checkpoint),
        "prompt_data": [str(dataset)],
        "seed": seed,
        "rollout_seed": seed,
        **_directories(work),
        **DATASET_COLUMNS,
        **_given(overrides),
    }
    if overrides.fully_async is not None or overrides.hybrid is not None:
        apart = {"fully_async": bool(overrides.fully_async), "hybrid": bool(overrides.hybrid)}
        changes |= {**apart, "colocate": not any(apart.values())}
    base = _read(file)
    if base.flat.save_interval is None:
        changes["save_interval"] = SAVE_INTERVAL
    if base.flat.dump_details is not None:
        changes["dump_details"] = str(work / "run" / DUMPS)
    return base.replace(**changes)


def supervised_config(
    file: FlyteFile, options: SupervisedOptions, *, model: Path, dataset: Path, work: Path, seed: int
) -> RunConfig:
    """The configuration of the warm start: the RL run's model and numerics, the supervised loss and `options`.

    Raises:
        ConfigError: as for `training_config`.
    """
    base = _read(file)
    kept = {name: value for name, value in base.explicit().items() if name in _SHARED}
    changes: dict[str, Any] = {
        "loss_type": "sft",
        "colocate": True,
        "num_rollout": options.steps,
        "rollout_batch_size": options.batch_size,
        "n_samples_per_prompt": 1,
        "global_batch_size": options.batch_size,
        "lr": options.lr,
        "lr_warmup_iters": options.warmup_steps,
        "rollout_shuffle": True,
        "hf_checkpoint": str(model),
        "prompt_data": [str(dataset)],
        "save_interval": options.steps,
        "seed": seed,
        "rollout_seed": seed,
        **_directories(work),
        **DATASET_COLUMNS,
    }
    return type(base).from_flat(**kept, **changes)


def evaluation_config(file: FlyteFile, *, model: Path, dataset: Path, name: str, seed: int) -> RunConfig:
    """The configuration of an evaluation: sampling and reward of the RL run.

    Raises:
        ConfigError: as for `training_config`.
    """
    changes: dict[str, Any] = {
        "hf_checkpoint": str(model),
        "eval_prompt_data": {name: [str(dataset)]},
        "rollout_seed": seed,
        **DATASET_COLUMNS,
    }
    return _read(file).replace(**changes)


# What a supervised run takes over from the RL run's file: everything that describes the model and its numerics.
_SHARED = (
    "bf16",
    "max_tokens_per_gpu",
    "tensor_model_parallel_size",
    "sequence_parallel",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "clip_grad",
    "rollout_max_prompt_len",
    "rollout_max_response_len",
    "role_deadline",
    "wait_timeout",
    "train_env_vars",
)


def _directories(work: Path) -> dict[str, str]:
    checkpoints = beside_artifacts(f"{work.name}/checkpoints") or str(work / "checkpoints")
    return {"save": checkpoints, "load": checkpoints, "run_dir": str(work / "run")}


def _given(overrides: TrainingOverrides) -> dict[str, Any]:
    values = {name: value for name, value in vars(overrides).items() if value is not None}
    if not overrides.resource:
        values.pop("resource")
    return values | {name: yaml.safe_load(value) for name, value in values.pop("settings").items()}


def _read(file: FlyteFile) -> RunConfig:
    from relax_engine.config import RunConfig

    given = RunConfig.from_yaml(os.fspath(file))
    # The record of a run has derived values too; they follow what is changed here.
    return RunConfig.from_flat(**given.changed(), custom=given.custom)
