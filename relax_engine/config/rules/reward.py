"""Rules about rewards and hooks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from relax_engine.config.fields import all_fields
from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig
from relax_engine.rewards.registry import reward_entry
from relax_engine.rewards.terms import OWN_REWARD, TOTAL, read_terms
from relax_engine.utils.hooks import undeclared


@rule
def reward_is_named(config: RunConfig, report: Reporter) -> Findings:
    """There is something to score responses with."""
    reward = config.reward
    if config.supervised or reward.defer_reward_to_post_process or config.agentic.use_agentic_rollout:
        return  # agents hand in rewards of their own
    guessed = reward.rm_type_infer or reward.rm_type_fallback is not None
    if reward.rm_type is None and reward.custom_rm_path is None and not guessed and not reward.reward_terms:
        yield report.warning(
            "rm_type custom_rm_path",
            "no reward is named, so every prompt must bring an `rm_type` in its metadata",
            "--rm-type math, or --custom-rm-path package.module.function",
        )
    elif reward.rm_type is not None and reward.custom_rm_path is not None:
        yield report.note("rm_type custom_rm_path", "the custom reward is used, the built-in one is not")


@rule
def reward_terms_are_known(config: RunConfig, report: Reporter) -> Findings:
    """Terms have weights, names of rewards, and a key under which the sum is found."""
    reward = config.reward
    if not reward.reward_terms:
        return
    try:
        terms = read_terms(reward.reward_terms)
        for term in terms:
            if term.reward != OWN_REWARD:
                reward_entry(term.reward)
    except ValueError as error:
        yield report.error("reward_terms", str(error), "correct the term")
        return
    if reward.reward_key is None:
        yield report.error(
            "reward_terms reward_key", "the reward is a dictionary of the sum and the terms", f"--reward-key {TOTAL}"
        )
    elif any(term.name == reward.reward_key for term in terms):
        yield report.error(
            "reward_terms reward_key", "a term has the name of the sum", f"--reward-key {TOTAL}, or rename the term"
        )
    if reward.group_rm:
        yield report.error("reward_terms group_rm", "terms score single samples", "leave --group-rm out")


@rule
def reward_servers_are_named(config: RunConfig, report: Reporter) -> Findings:
    """Rewards behind HTTP have an address."""
    reward = config.reward
    try:
        terms = read_terms(reward.reward_terms)
    except ValueError:
        return
    for names, flag, example in (
        (("remote_rm",), "rm_url", "--rm-url http://host:port/score"),
        (("genrm", "dapo-genrm"), "genrm_url", "--genrm-url http://host:port/v1, or --genrm-model-path DIRECTORY"),
    ):
        needed = reward.rm_type in names or any(term.reward in names and "url" not in term.arguments for term in terms)
        served = flag == "genrm_url" and reward.genrm_model_path is not None
        if needed and getattr(reward, flag) is None and not served and reward.custom_rm_path is None:
            yield report.error(flag, f"the reward {names[0]} has no address", example)


@rule
def one_judge(config: RunConfig, report: Reporter) -> Findings:
    """The judge is served by the run or elsewhere; options of the first need it."""
    reward = config.reward
    path = reward.genrm_model_path
    if path is not None and reward.genrm_url is not None:
        yield report.error(
            "genrm_url genrm_model_path", "the judge is served elsewhere or by this run, not both", "leave one out"
        )
    elif path is not None and not (Path(path) / "tokenizer_config.json").is_file():
        yield report.error(
            "genrm_model_path", "there is no model with a tokenizer", "a directory with config.json and a tokenizer"
        )
    given = [name for name in ("genrm_engine_config", "genrm_sampling_config") if getattr(reward, name)]
    if given and reward.genrm_model_path is None:
        yield report.warning(
            f"{' '.join(given)} genrm_model_path", "without effect: the run serves no judge", "add --genrm-model-path"
        )


@rule
def group_reward_is_custom(config: RunConfig, report: Reporter) -> Findings:
    """Built-in rewards score one sample at a time."""
    if config.reward.group_rm and config.reward.custom_rm_path is None:
        yield report.error(
            "group_rm custom_rm_path",
            "built-in rewards score single samples",
            "remove --group-rm, or name a function that takes a list of samples with --custom-rm-path",
        )


@rule
def deferred_rewards_come(config: RunConfig, report: Reporter) -> Findings:
    """Rewards that are not made on the way are made by the user's processing, after filters have seen the groups."""
    reward = config.reward
    if not reward.defer_reward_to_post_process:
        return
    if reward.custom_reward_post_process_path is None:
        yield report.error(
            "defer_reward_to_post_process custom_reward_post_process_path",
            "nothing would give rewards",
            "name a function with --custom-reward-post-process-path",
        )
    if config.rollout.dynamic_sampling_filter_path is not None:
        yield report.error(
            "defer_reward_to_post_process dynamic_sampling_filter_path",
            "the filter would see groups without rewards",
            "remove one of the two flags",
        )


@rule
def length_penalties_act(config: RunConfig, report: Reporter) -> Findings:
    """Penalties by length have their bounds, and are not replaced by a user's processing."""
    reward = config.reward
    buffer, longest = reward.overlong_buffer_len, config.rollout.rollout_max_response_len
    if buffer is not None and buffer > longest:
        yield report.error(
            "overlong_buffer_len rollout_max_response_len",
            "every response would be too long",
            f"--overlong-buffer-len {longest} or less",
        )
    if "overlong_penalty_factor" in config.changed() and buffer is None:
        yield report.warning(
            "overlong_penalty_factor overlong_buffer_len", "without effect", "add --overlong-buffer-len"
        )
    given = [name for name in ("overlong_buffer_len", "length_penalty_coef") if getattr(reward, name)]
    if given and reward.custom_reward_post_process_path is not None:
        yield report.warning(
            f"{' '.join(given)} custom_reward_post_process_path",
            "without effect: your function processes the rewards",
            "keep one of them",
        )


_NO_CODE = ("custom_config_path", "genrm_model_path")


@rule
def hooks_exist(config: RunConfig, report: Reporter) -> Findings:
    """Functions named by flags are `package.module.function` or `file.py:function`, and their home may be loaded."""
    declared = config.access.user_code_paths
    for name in [name for name in all_fields() if name.endswith("_path") and name not in _NO_CODE]:
        path = getattr(config.flat, name)
        if path is None:
            continue
        home, _, function = path.rpartition(":" if ":" in path else ".")
        if not home or not function.isidentifier():
            yield report.error(
                name, "no function is named", "write package.module.function, or path/to/file.py:function"
            )
        elif home.endswith(".py") and not Path(home).is_file():
            yield report.error(name, f"there is no file {home}", "correct the path")
        elif not home.endswith(".py") and not _module_exists(home):
            yield report.error(
                name,
                f"there is no module {home}",
                "run from the directory that holds its top-level package, or add that directory to PYTHONPATH",
            )
        elif declared and (outside := undeclared(path, declared)) is not None:
            yield report.error(
                f"{name} user_code_paths",
                f"{outside} is in none of the declared paths",
                f"--user-code-paths {Path(outside).parent}, if that code may run",
            )


def _module_exists(module: str) -> bool:
    """Whether `module` could be imported; imports its parent packages, not the module itself."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
