"""Rules about the objective, the optimizer and corrections."""

from __future__ import annotations

from relax_engine.config.fields import flag_name
from relax_engine.config.rules.base import Finding, Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig


@rule
def algorithm_is_known(config: RunConfig, report: Reporter) -> Findings:
    """The estimator is registered, and its own constraints hold."""
    from relax_engine.algorithms.constraints import violations
    from relax_engine.algorithms.registry import get, names
    from relax_engine.utils.suggest import nearest

    if config.supervised:
        return
    name = config.algorithm.advantage_estimator
    if name not in names():
        match = nearest(name, names())
        yield report.error(
            "advantage_estimator",
            f"no such algorithm; known: {', '.join(names())}",
            f"--advantage-estimator {match or names()[0]}",
        )
        return
    in_force = config.replace(max_staleness=config.rollouts_ahead)
    for violation in violations(get(name), in_force.flat):
        flags = {"--advantage-estimator": name, flag_name(violation.field): violation.value}
        yield Finding("error", "algorithm_is_known", violation.reason, violation.fix, flags)


@rule
def one_kl_term(config: RunConfig, report: Reporter) -> Findings:
    """KL goes into the reward or into the loss, not both."""
    if config.algorithm.kl_coef != 0 and config.algorithm.kl_loss_coef != 0:
        yield report.error(
            "kl_coef kl_loss_coef",
            "the KL penalty would be counted twice, in the reward and in the loss",
            "set one of them to 0",
        )


@rule
def kl_loss_is_used(config: RunConfig, report: Reporter) -> Findings:
    """--use-kl-loss and its coefficient come together."""
    settings = config.algorithm
    if settings.kl_loss_coef != 0 and not settings.use_kl_loss:
        yield report.warning("kl_loss_coef use_kl_loss", "the coefficient has no effect", "add --use-kl-loss")
    if settings.use_kl_loss and settings.kl_loss_coef == 0:
        yield report.note(
            "use_kl_loss kl_loss_coef",
            "the KL term has weight 0 and is not computed",
            "--kl-loss-coef 0.001, or remove --use-kl-loss",
        )
    if settings.use_unbiased_kl and not settings.use_kl_loss:
        yield report.warning("use_unbiased_kl use_kl_loss", "there is no KL term to correct", "add --use-kl-loss")


@rule
def one_behaviour_policy(config: RunConfig, report: Reporter) -> Findings:
    """Importance weights compare two policies that --use-rollout-logprobs makes one."""
    settings = config.algorithm
    for name in ("use_tis", "use_decoupled_ppo", "custom_tis_function_path"):
        if getattr(settings, name) and settings.use_rollout_logprobs:
            yield report.error(
                f"{name} use_rollout_logprobs",
                "with the engine's log-probs as the old policy every importance weight is 1",
                "remove one of the two flags",
            )
        elif getattr(settings, name) and name != "use_tis" and _compares_with_behaviour(config):
            yield report.error(
                f"{name} advantage_estimator",
                "the algorithm already compares with the policy that sampled, so there is nothing left to correct",
                f"remove {flag_name(name)}",
            )


@rule
def one_reduction(config: RunConfig, report: Reporter) -> Findings:
    """Token losses are reduced in one way."""
    settings = config.algorithm
    if settings.calculate_per_token_loss and settings.loss_constant_length is not None:
        yield report.error(
            "calculate_per_token_loss loss_constant_length",
            "these are two different ways to average token losses",
            "keep one of them",
        )
    if settings.custom_pg_loss_reducer_function_path is not None and settings.loss_constant_length is not None:
        yield report.error(
            "custom_pg_loss_reducer_function_path loss_constant_length",
            "your function reduces the policy loss, and the constant would not act on it",
            "remove --loss-constant-length",
        )


@rule
def group_of_one(config: RunConfig, report: Reporter) -> Findings:
    """A group of one has no baseline: its normalised reward is always 0."""
    from relax_engine.algorithms.registry import get, names

    settings = config.algorithm
    if config.supervised or settings.advantage_estimator not in names():
        return
    compares = get(settings.advantage_estimator).needs_whole_groups and not settings.disable_rewards_normalization
    if config.data.n_samples_per_prompt == 1 and compares:
        yield report.warning(
            "n_samples_per_prompt advantage_estimator",
            "each sample is compared with itself alone, so every advantage is 0 and nothing is learned",
            "--n-samples-per-prompt 8, or --disable-rewards-normalization for raw rewards",
        )


@rule
def flags_of_other_algorithms(config: RunConfig, report: Reporter) -> Findings:
    """A flag that only some algorithms read is given to one that does not."""
    from relax_engine.algorithms.registry import get, names

    estimator = config.algorithm.advantage_estimator
    if config.supervised or estimator not in names():
        return
    read = get(estimator).flags
    if read is None:
        return
    readers: dict[str, list[str]] = {}
    for name in names():
        for flag in get(name).flags or ():
            readers.setdefault(flag, []).append(name)
    for flag in sorted(readers.keys() & config.changed().keys() - set(read)):
        yield report.warning(
            f"{flag} advantage_estimator",
            f"without effect: read by {', '.join(readers[flag])}",
            "leave it out",
        )


@rule
def kl_in_the_reward_is_k1(config: RunConfig, report: Reporter) -> Findings:
    """As a reward, only k1 has the KL divergence's policy gradient."""
    if config.algorithm.kl_coef != 0 and config.algorithm.kl_loss_type != "k1":
        yield report.warning(
            "kl_coef kl_loss_type",
            "as a reward this estimator's policy gradient is not that of the KL divergence",
            "--kl-loss-type k1",
        )


@rule
def loss_has_what_it_needs(config: RunConfig, report: Reporter) -> Findings:
    """Answers for supervised losses, a function for a custom one; and their flags with them only."""
    settings, data = config.algorithm, config.data
    pairs = settings.loss_type == "dpo"
    needed = {"label_key": config.supervised, "rejected_key": pairs}
    lacking = [name for name, wanted in needed.items() if wanted and getattr(data, name) is None]
    if lacking:
        yield report.error(
            f"loss_type {' '.join(lacking)}",
            "the answers to learn from are missing",
            " ".join(f"{flag_name(name)} COLUMN" for name in lacking),
        )
    given = [name for name in ("dpo_beta", "dpo_reference_free", "rejected_key") if name in config.changed()]
    if given and not pairs:
        yield report.warning(f"{' '.join(given)} loss_type", "without effect", "--loss-type dpo")
    of_classes = [name for name in ("problem_type", "classification_threshold") if name in config.changed()]
    if of_classes and settings.loss_type != "seq_cls":
        yield report.warning(f"{' '.join(of_classes)} loss_type", "without effect", "--loss-type seq_cls")
    custom = settings.loss_type == "custom_loss"
    if custom != (settings.custom_loss_function_path is not None):
        yield report.error(
            "loss_type custom_loss_function_path",
            "a custom loss and its function come together",
            "--loss-type custom_loss --custom-loss-function-path file.py:function",
        )


@rule
def supervised_is_colocate(config: RunConfig, report: Reporter) -> Findings:
    """Supervised training has no rollouts to overlap with."""
    if config.supervised and config.mode != "colocate":
        yield report.error(
            f"loss_type {config.mode}",
            "supervised training samples nothing that could run ahead",
            f"remove {flag_name(config.mode)}",
        )


@rule
def dropout_is_off(config: RunConfig, report: Reporter) -> Findings:
    """Dropout makes the trained policy another one than the sampled."""
    model = config.model
    if not config.supervised and (model.attention_dropout or model.hidden_dropout):
        yield report.warning(
            "attention_dropout hidden_dropout",
            "with dropout the ratio of new to old policy is noise",
            "--attention-dropout 0 --hidden-dropout 0",
        )


@rule
def learning_rate_schedule(config: RunConfig, report: Reporter) -> Findings:
    """The schedule falls, and warms up before it decays."""
    schedule = config.optimizer
    if schedule.min_lr > schedule.lr:
        yield report.error(
            "min_lr lr", "the final learning rate lies above the peak", f"--min-lr {schedule.lr} or less"
        )
    decay = schedule.lr_decay_iters
    if decay is not None and schedule.lr_decay_style != "constant" and schedule.lr_warmup_iters >= decay:
        yield report.error(
            "lr_warmup_iters lr_decay_iters lr_decay_style",
            "the warm-up ends after the decay",
            f"--lr-warmup-iters {decay - 1} or less",
        )


def _compares_with_behaviour(config: RunConfig) -> bool:
    """Whether the algorithm's own ratio is that of the current to the sampling policy."""
    from relax_engine.algorithms.registry import get, names

    name = config.algorithm.advantage_estimator
    return name in names() and get(name).ratio_to_behaviour
