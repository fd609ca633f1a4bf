"""Rules about off-policy corrections: importance weights, sequence masking, decoupled PPO."""

from __future__ import annotations

from relax_engine.config.roles import compares_with_sampler, old_policy_is_current
from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig

_SHAPE = ("tis_clip", "tis_clip_low", "tis_level", "tis_mode", "tis_batch_normalize")


@rule
def tis_range(config: RunConfig, report: Reporter) -> Findings:
    """The bounds of the importance weight are a range, and there is a weight to bound."""
    settings = config.algorithm
    if settings.tis_clip_low > settings.tis_clip:
        yield report.error("tis_clip_low tis_clip", "the lower bound lies above the upper one", "--tis-clip-low 0")
    given = [name for name in _SHAPE if name in config.changed()]
    if not given:
        return
    if settings.custom_tis_function_path is not None:
        yield report.warning(
            f"{' '.join(given)} custom_tis_function_path",
            "without effect on the loss: your function makes the weights",
            "read them in it from `args`, or leave them out",
        )
    elif not settings.use_tis and not settings.use_decoupled_ppo:
        yield report.warning(f"{' '.join(given)} use_tis", "without effect", "add --use-tis")


@rule
def tis_mean_is_known_before_the_step(config: RunConfig, report: Reporter) -> Findings:
    """The mean weight of a batch needs both log-probs before the loss is computed."""
    settings = config.algorithm
    if not settings.tis_batch_normalize:
        return
    if settings.use_decoupled_ppo or _trains_on_policy(config):
        yield report.error(
            "tis_batch_normalize use_decoupled_ppo max_staleness",
            "the old policy is the current one: its log-probs, and so the mean weight of the batch, are not known "
            "before the step",
            "remove --tis-batch-normalize",
        )


@rule
def opsm_has_an_old_policy(config: RunConfig, report: Reporter) -> Findings:
    """Sequence masking compares the current policy with an older one."""
    settings = config.algorithm
    if "opsm_delta" in config.changed() and not settings.use_opsm:
        yield report.warning("opsm_delta use_opsm", "without effect", "add --use-opsm")
    if settings.use_opsm and _trains_on_policy(config) and not settings.use_rollout_logprobs:
        yield report.warning(
            "use_opsm num_steps_per_rollout max_staleness",
            "without effect: a batch is trained once, by the policy that sampled it",
            "remove --use-opsm, or add --use-rollout-logprobs to compare with the engine's log-probs",
        )


@rule
def decoupling_needs_stale_data(config: RunConfig, report: Reporter) -> Findings:
    """Decoupled PPO tells apart policies that are the same when nothing is stale."""
    if config.algorithm.use_decoupled_ppo and config.staleness_bound == 0:
        yield report.note(
            "use_decoupled_ppo max_staleness",
            "every sample comes from the policy at the start of the rollout, so this is --use-tis",
        )


@rule
def stale_samples_are_clipped(config: RunConfig, report: Reporter) -> Findings:
    """Say where the old policy of stale samples is the current one: the ratio is 1, and the clip never acts."""
    settings = config.algorithm
    own = settings.use_rollout_logprobs or compares_with_sampler(config)
    if config.supervised or own or config.staleness_bound == 0 or not old_policy_is_current(config):
        return
    if settings.use_decoupled_ppo or settings.use_tis:
        name = "use_decoupled_ppo" if settings.use_decoupled_ppo else "use_tis"
        yield report.note(
            f"{name} num_steps_per_rollout max_staleness",
            "with one optimizer step per rollout every ratio is 1 and nothing is clipped: only the bounds of the "
            "weight limit a step",
            "--num-steps-per-rollout 2 or more, where samples are more than 4 versions old",
        )
    elif settings.custom_tis_function_path is None:
        yield report.warning(
            "true_on_policy_mode max_staleness",
            "stale samples are trained as if they were fresh: nothing is corrected and nothing clipped",
            "remove --true-on-policy-mode, or add --use-tis",
        )


def _trains_on_policy(config: RunConfig) -> bool:
    return config.staleness_bound == 0 and config.data.num_steps_per_rollout == 1
