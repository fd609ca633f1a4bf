"""How responses are scored."""

from __future__ import annotations

from relax_engine.config.sections.base import JsonObject, Section, flag, group


class Reward(Section):
    """Built-in and custom rewards, and the limits under which they run."""

    rm_type: str | None = None
    """Built-in reward (`math`, `dapo`, ...) for samples whose metadata names none; unused with `--custom-rm-path`."""

    rm_type_infer: bool = False
    """For rows that name no reward, without `--rm-type`: take the one built-in reward that their label and metadata
    look like."""

    rm_type_fallback: str | None = None
    """Reward of rows for which none is known, instead of an error; `zero` scores them 0."""

    reward_terms: JsonObject = group(dict)
    """A reward made of several, as JSON or in YAML: `{name: weight}` or `{name: {weight: w, reward: name, argument:
    value}}`. The reward `rm_type` is the one that a sample would have without terms. Each term is logged under its
    name."""

    rm_url: str | None = None
    """Address that `--rm-type remote_rm` posts samples to."""

    genrm_url: str | None = None
    """Address of the judge of `--rm-type genrm`: `http://host:port/v1` with OpenAI's chat completions, or one that ends
    in `/generate`."""

    genrm_model_path: str | None = None
    """Hugging Face directory of a judge of `--rm-type genrm` that the run serves itself, on devices of its own (`genrm`
    in `--resource`), at `/genrm/generate`; its engines can become more and fewer (docs/design/elastic.md)."""

    genrm_engine_config: JsonObject = group(dict)
    """The judge's engines, as JSON: `max_context_len` (8192), and server arguments by name."""

    genrm_sampling_config: JsonObject = group(dict)
    """How the judge samples where a request does not say, as JSON: `temperature` (0.1), `top_p`, `top_k`,
    `max_response_len` (4096), and `chat_template_kwargs`."""

    reward_failure_score: float | None = None
    """Score of a sample whose reward call fails in any way. Default: an error that ends the run, but for built-in
    rewards that hang or die, which give their lowest score."""

    custom_rm_path: str | None = None
    """Your reward, `package.module.function` or `file.py:function`: `reward_func(args, sample, **kwargs)` returns a
    number or a dictionary, async or not."""

    group_rm: bool = False
    """Call the reward once per prompt group: it receives a list of samples and returns a list."""

    reward_key: str | None = None
    """Key of the score in rewards that are dictionaries."""

    custom_reward_post_process_path: str | None = None
    """Your processing of rewards in place of penalties and group normalisation: `fn(args, samples)` gets the samples of
    whole groups and returns a list of numbers, or `(raw list, processed list)`."""

    defer_reward_to_post_process: bool = False
    """Do not score samples on the way: `--custom-reward-post-process-path` gives the rewards of whole groups."""

    overlong_buffer_len: int | None = flag(None, ge=1, unit="tokens")
    """Length of the slope before `--rollout-max-response-len` over which the overlong penalty of DAPO grows. Default:
    no penalty."""

    overlong_penalty_factor: float = flag(1.0, gt=0)
    """Overlong penalty of a response of `--rollout-max-response-len` tokens."""

    length_penalty_coef: float = flag(0.0, ge=0)
    """Coefficient of Kimi k1.5's length reward, which prefers the shorter right responses of a group."""

    reward_num_workers: int = flag(16, ge=1, unit="processes")
    """Most worker processes for synchronous rewards; one is started when a call would have to wait."""

    reward_max_concurrency: int = flag(64, ge=1, unit="calls")
    """Reward calls in progress at the same time."""

    reward_timeout: float = flag(60.0, gt=0, unit="seconds")
    """Deadline of one reward call; a call that misses it is killed and is an error naming the sample."""
