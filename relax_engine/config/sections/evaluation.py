"""When and on what the policy is evaluated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import BeforeValidator

from relax_engine.config.sections.base import Section, flag, group, split_bracketed

_DATA_FILE = re.compile(r"\.(parquet|jsonl|json)(\[\d*:\d*\])?$")


def _is_path(token: str) -> bool:
    return "/" in token or _DATA_FILE.search(token) is not None


def read_eval_datasets(value: Any) -> Any:
    """Turn `name path [path ...] [name path ...]` into `{name: [path, ...]}`.

    A token with a slash or a data file's ending is a path, everything else a name; paths before any
    name are named after their file.

    Raises:
        ValueError: a name without a path, or a name that occurs twice.
    """
    if isinstance(value, str):
        value = [value]
    if isinstance(value, dict):
        return {name: [paths] if isinstance(paths, str) else paths for name, paths in value.items()}
    if not isinstance(value, Sequence):
        return value
    datasets: dict[str, list[str]] = {}
    current: str | None = None
    for token in value:
        if not isinstance(token, str):
            raise ValueError(f"expected names and paths, found {token!r}")
        bracketed = token.startswith("[") and token.endswith("]")
        if not bracketed and not _is_path(token):
            if token in datasets:
                raise ValueError(f"dataset name {token!r} occurs twice")
            current = token
            datasets[current] = []
            continue
        paths = split_bracketed(token) if bracketed else [token]
        name = current if current is not None else PurePath(paths[0]).stem
        datasets.setdefault(name, []).extend(paths)
    for name, paths in datasets.items():
        if not paths:
            raise ValueError(f"dataset {name!r} has no path; write: name path [path ...]")
    return datasets


class Evaluation(Section):
    """Held-out prompts and how responses to them are sampled."""

    eval_prompt_data: Annotated[dict[str, list[str]], BeforeValidator(read_eval_datasets)] = group(dict)
    """Held-out prompts: `name path [path ...] [name path ...]`; a path without a name is named after its file."""

    eval_interval: int | None = flag(None, ge=1, unit="rollouts")
    """Evaluate before the first and after every so many rollouts; needs `--eval-prompt-data`."""

    skip_eval_before_train: bool = False
    """Leave out the evaluation before the first rollout."""

    eval_timeout: float = flag(1800.0, gt=0, unit="seconds")
    """Longest that new weights wait for a running evaluation of the present ones."""

    eval_function_path: str | None = None
    """Function like `--rollout-function-path`, called with `evaluation=True`, that makes the evaluations. Default:
    that of `--rollout-function-path`."""

    custom_eval_rollout_log_function_path: str | None = None
    """Function `(rollout_id, args, data, extra_metrics) -> bool`; True leaves out the built-in metrics."""

    n_samples_per_eval_prompt: int = flag(1, ge=1, unit="samples")
    """Responses per evaluation prompt."""

    eval_temperature: float | None = flag(None, ge=0)
    """Sampling temperature; 0 is greedy. Default: `--rollout-temperature`."""

    eval_top_p: float | None = flag(None, gt=0, le=1)
    """Nucleus sampling. Default: `--rollout-top-p`."""

    eval_top_k: int | None = flag(None, ge=-1)
    """Sample among the k likeliest tokens. Default: `--rollout-top-k`."""

    eval_max_response_len: int | None = flag(None, ge=1, unit="tokens")
    """Longest response. Default: `--rollout-max-response-len`."""
