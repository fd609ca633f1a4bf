"""What is loaded at the start and saved on the way."""

from __future__ import annotations

from typing import Literal

from relax_engine.config.sections.base import Section, flag


class Checkpoint(Section):
    """Checkpoint directories, intervals and resume."""

    load: str | None = None
    """Checkpoint directory to resume from; without a complete checkpoint in it the run starts from
    `--ref-load` or `--hf-checkpoint`."""

    save: str | None = None
    """Directory that receives checkpoints, `iter_0000010` and so on. With an fsspec URL, such as `s3://bucket/run`,
    they are saved in `checkpoints` of `--run-dir` and copied there."""

    save_interval: int | None = flag(None, ge=1, unit="rollouts")
    """Save after every so many rollouts, and after the last; needs `--save`."""

    max_actor_ckpt_to_keep: int | None = flag(None, ge=1, unit="checkpoints")
    """Newest checkpoints to keep; older ones are deleted once a newer one is complete. Default: all."""

    async_save: bool = False
    """Write checkpoints while training goes on: a step waits for a copy in memory, not for the disk. A checkpoint is
    complete one step later."""

    no_save_optim: bool = False
    """Leave optimizer state out of checkpoints, which are then for export and `--only-load-weight`."""

    save_hf: str | None = None
    """Also write each checkpoint as a Hugging Face directory or `s3://` prefix, `{rollout_id}` filled in, while
    training goes on; needs `--save`."""

    save_hf_dtype: Literal["bf16", "fp8"] = "bf16"
    """Type of its weights; `fp8` is for the linear layers, the others stay bfloat16."""

    save_hf_fp8_quant_mode: Literal["block", "channel", "tensor"] = "block"
    """What has a scale of its own with `--save-hf-dtype fp8`."""

    save_hf_fp8_block_size: tuple[int, int] = (128, 128)
    """Rows and columns of a block."""

    save_hf_post_hook_path: str | None = None
    """`hook(args, hf_path, rollout_id, *, dtype, is_lora)`, plain or async, called after each."""

    ref_load: str | None = None
    """Weights of the reference model (Hugging Face or checkpoint directory). Default: `--hf-checkpoint`."""

    ref_update_interval: int | None = flag(None, ge=1, unit="rollouts")
    """Make the trained weights the reference after every so many rollouts. Default: the reference stays."""

    critic_load: str | None = None
    """Checkpoint directory to resume the critic from, or what a new one starts as: another run's critic, or a Hugging
    Face model, a language model (its value head starts at zero) or a `...ForSequenceClassification` with one label (a
    reward model). A new critic starts from `--ref-load` otherwise. Default with a critic: `critic` in `--load`."""

    critic_save: str | None = None
    """Directory that receives the critic's checkpoints, at the same rollouts as the actor's. Default with a critic:
    `critic` in `--save`."""

    only_load_weight: bool = False
    """Load weights, but neither optimizer state nor random state nor dataset position."""

    start_rollout_id: int | None = flag(None, ge=0)
    """Rollout to start at. Default: the one after the loaded checkpoint's, else 0."""
