"""`train`: one run from a configuration to a result, on whatever cluster is there."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_engine.access.policy import install, new_policy
from relax_engine.access.token_file import token_file
from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.components.mode import evaluation_is_due
from relax_engine.components.role import Phase
from relax_engine.config import RunConfig
from relax_engine.config.doctor import require_valid
from relax_engine.core.cluster import ray_cluster
from relax_engine.core.controller import Controller
from relax_engine.core.environment import write_environment
from relax_engine.core.recovery import until_done
from relax_engine.core.remote_checkpoints import local_checkpoints
from relax_engine.core.result import RunResult, collect_result
from relax_engine.core.resume import ResumePoint, find_resume_point, newest_of_run
from relax_engine.observe.forward import forwarding
from relax_engine.observe.journal import PHASES, Journal
from relax_engine.observe.metrics import MetricsLog, read_metrics
from relax_engine.observe.notify import notified
from relax_engine.observe.series import RunMetrics
from relax_engine.observe.service.book import POSTED, SERVICE
from relax_engine.observe.trackers import open_trackers
from relax_engine.rollout.data_source import DataSettings
from relax_engine.rollout.prompt_check import check_prompts
from relax_engine.rollout.prompts import count_prompts
from relax_engine.rollout.tokenizer import load_tokenizer
from relax_engine.utils.hooks import declare_code_paths
from relax_engine.utils.redact import redact

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


def train(config: RunConfig) -> RunResult:
    """Train as `config` says; resumes from `--load` when a complete checkpoint is there.

    With `--use-fault-tolerance` a run that was interrupted beyond what a restart in place heals is started again
    from the last checkpoint that it saved, or from where it began.

    Raises:
        ConfigError: the configuration cannot run.
        RelaxError: a role failed; nothing half-written is left behind.
    """
    declare_code_paths(config.access.user_code_paths)
    require_valid(config)
    run_dir = Path(config.flat.run_dir).absolute()
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.yaml").write_text(config.to_yaml())
    write_environment(config, run_dir)
    if config.flat.dump_details is not None:
        Path(config.flat.dump_details).mkdir(parents=True, exist_ok=True)
        Path(config.flat.dump_details, "config.yaml").write_text(config.to_yaml())
    with local_checkpoints(config, run_dir) as local_config:
        return _train(local_config, run_dir)


def _train(config: RunConfig, run_dir: Path) -> RunResult:
    point = find_resume_point(config)
    num_steps = total_steps(config)
    if point.iteration >= num_steps and not lacks_evaluation(config, run_dir, num_steps):
        logger.info("nothing to do: the checkpoint is at step %d of %d", point.iteration, num_steps)
        if point.state.get("iteration") == point.iteration:
            # The crash may have come between the last checkpoint and its step's line.
            MetricsLog(run_dir / "metrics.jsonl", start_step=point.iteration, last=point.state.get("metrics"))
        return collect_result(run_dir, point.directory, [], start_step=point.iteration, wall_seconds=0.0)
    _check_prompts(config)
    if point.iteration:
        logger.info("resuming at step %d of %d from %s", point.iteration, num_steps, point.directory)
    flat = config.flat
    facts = _facts(config, point, num_steps)
    notified_run = notified(flat.notify_urls, flat.experiment_name, facts, flat.notify_regressions)
    if point.iteration == 0:
        for name in (PHASES, POSTED, SERVICE):  # of an earlier run in this directory
            (run_dir / name).unlink(missing_ok=True)
    journal = Journal(run_dir)

    def on_event(event: Mapping[str, Any]) -> None:
        journal.event(event)
        notifier.event(event)

    with (
        forwarding(open_trackers(config, run_dir), run_dir),
        notified_run as notifier,
        _journaled(journal, point.iteration, num_steps),
    ):
        phases, seconds = _run_to_the_end(config, run_dir, point, num_steps, on_event, journal.state)
        latest = CheckpointManager(config.flat.save).latest() if config.flat.save else None
        result = collect_result(
            run_dir,
            str(latest.path) if latest else None,
            phases,
            start_step=point.iteration,
            wall_seconds=seconds,
        )
        RunMetrics(run_dir).write_parquet(run_dir / "metrics.parquet")
        notifier.finished(result.metrics, {"steps": result.steps, "seconds": f"{seconds:.1f}"})
        return result


@contextlib.contextmanager
def _journaled(journal: Journal, start: int, num_steps: int) -> Iterator[None]:
    """Note start and end of the run."""
    journal.event({"kind": "run_started", "role": "controller", "step": start, "num_steps": num_steps})
    journal.state({"status": "starting", "num_steps": num_steps})
    outcome = "interrupted"
    try:
        yield
        outcome = "finished"
    except Exception as error:
        outcome = f"failed: {redact(str(error))}"
        raise
    finally:
        journal.event({"kind": "run_ended", "role": "controller", "outcome": outcome})
        journal.state({"status": outcome.partition(":")[0], "num_steps": num_steps})


def _facts(config: RunConfig, point: ResumePoint, num_steps: int) -> dict[str, Any]:
    """What a notification of the start says."""
    flat = config.flat
    facts = {"project": flat.tb_project_name, "mode": config.mode, "algorithm": flat.advantage_estimator}
    return {name: value for name, value in facts.items() if value} | {"steps": f"{point.iteration}..{num_steps}"}


def lacks_evaluation(config: RunConfig, run_dir: Path, num_steps: int) -> bool:
    """Whether a run of `run_dir` was killed between its last checkpoint and the evaluation of its final weights."""
    if config.supervised or not evaluation_is_due(config, num_steps) or not (run_dir / "metrics.jsonl").exists():
        return False
    path = run_dir / "eval.jsonl"
    done = {line["dataset"] for line in read_metrics(path) if line["step"] == num_steps} if path.exists() else set()
    # The names that a function of one's own returns are known only when it has been called.
    return not done if config.flat.eval_function_path else not done >= set(config.flat.eval_prompt_data)


def _check_prompts(config: RunConfig) -> None:
    """Refuse prompt files that a role would refuse, before anything is started."""
    flat = config.flat

    @functools.cache
    def tokenizer() -> PreTrainedTokenizerBase:
        return load_tokenizer(flat.hf_checkpoint)

    if flat.loss_type != "sft":
        for paths in [None, *flat.eval_prompt_data.values()]:
            check_prompts(DataSettings.from_config(flat, prompt_data=paths), tokenizer)


def _run_to_the_end(
    config: RunConfig,
    run_dir: Path,
    point: ResumePoint,
    num_steps: int,
    on_event: Callable[[Mapping[str, Any]], None],
    on_state: Callable[[Mapping[str, Any]], None],
) -> tuple[list[Phase], float]:
    """One controller after the other, each on a cluster that it finds or starts, until one comes to the end."""
    run_id = uuid.uuid4().hex
    policy = new_policy(config.flat)
    install(policy)

    def run_from(point: ResumePoint) -> tuple[list[Phase], float]:
        with ray_cluster(config.flat.ray_address) as cluster:
            controller = Controller(config, cluster, run_dir, point, num_steps, run_id, on_event, on_state)
            # A thread of its own, so that a caller with a running event loop (a notebook) can call this.
            with ThreadPoolExecutor(1, thread_name_prefix="controller") as executor:
                return executor.submit(asyncio.run, controller.run()).result()

    with token_file(run_dir, policy.api_token):
        if not config.flat.use_fault_tolerance:
            return run_from(point)
        return until_done(
            run_from, point, lambda: newest_of_run(config, run_id), config.flat.max_global_restart, on_event
        )


def total_steps(config: RunConfig) -> int:
    """Rollouts of the whole run: `--num-rollout`, `--num-epoch` times the epoch's, or the smaller of both."""
    flat = config.flat
    limits = [flat.num_rollout] if flat.num_rollout else []
    if flat.num_epoch:
        size = flat.global_batch_size if config.supervised else flat.rollout_batch_size
        limits.append(count_prompts(flat.prompt_data) // size * flat.num_epoch)
    return int(min(limits))
