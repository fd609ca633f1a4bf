"""Settings of verl about the course of training.

What lives here: schedule, length, checkpoints and trackers. What does not: keys that stand alone (`tables`).
"""

from __future__ import annotations

import math

from relax_engine.migrate.draft import Draft, read_value
from relax_engine.migrate.shell.symbols import render
from relax_engine.migrate.verl.settings import Settings
from relax_engine.migrate.verl.tables import ACTOR
from relax_engine.migrate.verl.values import number


def schedule(settings: Settings, draft: Draft) -> None:
    """Warm-up and decay."""
    for prefix, field in (
        (ACTOR + "optim.", "lr_warmup_iters"),
        ("critic.optim.", "critic_lr_warmup_iters"),
        ("optim.", "lr_warmup_iters"),
    ):
        steps, ratio = settings.take(prefix + "lr_warmup_steps"), settings.take(prefix + "lr_warmup_steps_ratio")
        count = number(steps) if steps is not None else None
        if steps is not None and (read_value(steps) is None or (count or 0) < 0):
            draft.skip(prefix + "lr_warmup_steps", steps, "left to lr_warmup_steps_ratio")
        elif steps is not None:
            draft.settle(prefix + "lr_warmup_steps", steps, {field: read_value(steps)})
        total, share = number(settings.original("trainer.total_training_steps")), read_value(ratio or "0")
        if ratio is None:
            continue
        if share == 0:
            draft.skip(prefix + "lr_warmup_steps_ratio", ratio, "no warm-up")
        elif total and isinstance(share, int | float):
            draft.settle(prefix + "lr_warmup_steps_ratio", ratio, {field: int(share * total)}, f"of {total} steps")
        else:
            reason = "a share of all optimizer steps, whose number follows from the data: give it in steps"
            draft.needs(prefix + "lr_warmup_steps_ratio", ratio, reason)
    for key in (
        ACTOR + "optim.lr_scheduler_type",
        ACTOR + "optim.warmup_style",
        "optim.lr_scheduler",
        "optim.lr_scheduler_type",
    ):
        style = settings.take(key)
        if style is not None:
            draft.settle(key, style, {"lr_decay_style": style})
    for prefix in (ACTOR + "optim.", "optim."):
        betas, ratio = settings.take(prefix + "betas"), settings.take(prefix + "min_lr_ratio")
        if betas is not None:
            pair = read_value(betas)
            pair = pair if isinstance(pair, list) else [betas]
            draft.settle(prefix + "betas", betas, dict(zip(("adam_beta1", "adam_beta2"), pair, strict=False)))
        if ratio is None:
            continue
        share, peak = read_value(ratio), read_value(settings.original(prefix + "lr") or "1e-6")
        if isinstance(share, int | float) and isinstance(peak, int | float):
            draft.settle(prefix + "min_lr_ratio", ratio, {"min_lr": share * peak}, "times the peak")
        else:
            draft.needs(prefix + "min_lr_ratio", ratio, "a share of the peak: give --min-lr")


def length_of_training(settings: Settings, draft: Draft) -> None:
    """Epochs, steps, and what happens in between."""
    for key in ("trainer.total_epochs", "rollout.total_epochs"):
        epochs = settings.take(key)
        if epochs is not None:
            draft.settle(key, epochs, {"num_epoch": read_value(epochs)})
    steps = settings.take("trainer.total_training_steps")
    if steps is not None and read_value(steps) is None:
        draft.skip("trainer.total_training_steps", steps, "follows from the epochs")
    elif steps is not None:
        draft.settle("trainer.total_training_steps", steps, {"num_rollout": read_value(steps)})
    total = settings.take("rollout.total_rollout_steps")
    size = draft.values.get("rollout_batch_size")
    if total is not None and number(total) and isinstance(size, int):
        draft.settle(
            "rollout.total_rollout_steps", total, {"num_rollout": max(1, (number(total) or 0) // size)}, "prompts"
        )
    elif total is not None:
        draft.needs(
            "rollout.total_rollout_steps", total, "prompts over the whole run: give --num-rollout, batches of prompts"
        )
    for key, field in (("trainer.save_freq", "save_interval"), ("trainer.test_freq", "eval_interval")):
        every = settings.take(key)
        if every is not None and (number(every) or 1) <= 0:
            draft.skip(key, every, f"off: there is no --{field.replace('_', '-')}")
        elif every is not None:
            draft.settle(key, every, {field: read_value(every)})
    before = settings.take("trainer.val_before_train")
    if before is not None:
        draft.settle("trainer.val_before_train", before, {"skip_eval_before_train": read_value(before) is False})
    stale = settings.take("async_training.staleness_threshold")
    if stale is not None:
        share = read_value(stale)
        versions = math.ceil(share) if isinstance(share, int | float) else stale
        draft.settle(
            "async_training.staleness_threshold", stale, {"max_staleness": versions}, "in whole weight versions"
        )


def checkpoints(settings: Settings, draft: Draft) -> None:
    """Where checkpoints go, and whether a run resumes from them."""
    directory, resume = settings.take("trainer.default_local_dir"), settings.take("trainer.resume_mode")
    where = directory if directory is not None else "checkpoints/${EXP_NAME}"
    resumes = resume is None or resume == "auto"
    targets = {"save": where, "load": where} if resumes else {"save": where}
    if directory is not None:
        draft.settle("trainer.default_local_dir", directory, targets)
    elif "save_interval" in draft.values:
        name = render(settings.original("trainer.experiment_name") or "default")
        project = render(settings.original("trainer.project_name") or "verl_examples")
        where = f"checkpoints/{project}/{name}"
        draft.default("trainer.default_local_dir", where, {key: where for key in targets}, "the source's default")
    if resume is not None:
        text = "--load is the directory of --save" if resumes else "there is no --load"
        draft.skip("trainer.resume_mode", resume, text)


def trackers(settings: Settings, draft: Draft) -> None:
    """The console is always there."""
    logger = settings.take("trainer.logger")
    if logger is not None:
        known = [name for name in ("wandb", "tensorboard", "clearml") if name in logger]
        targets = {f"use_{name}": True for name in known}
        if targets:
            draft.settle("trainer.logger", logger, targets)
        else:
            draft.skip("trainer.logger", logger, "metrics go to metrics.jsonl in --run-dir")
    for key, field in (("trainer.rollout_data_dir", "save_debug_rollout_data"),):
        directory = settings.take(key)
        if directory is not None and read_value(directory) is not None:
            draft.settle(key, directory, {field: directory + "/{rollout_id}.jsonl"})
