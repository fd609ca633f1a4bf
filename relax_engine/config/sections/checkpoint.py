"""What is loaded at the start and saved on the way."""

from __future__ import annotations

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
