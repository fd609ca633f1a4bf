"""What to do before the first run of a migrated recipe: models to download, data to convert and to validate.

What lives here: the commands, and the names that conversion gives to files. What does not: conversion (`data_prep`).
"""

from __future__ import annotations

import re
from typing import Any

from relax_engine.migrate.shell.symbols import quote, render

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def prerequisites(values: dict[str, Any], layout: str | None) -> list[str]:
    """The commands, one each; `layout` is the data's, None for data that needs no conversion.

    Where it is converted, the prompt files in `values` are replaced by what conversion makes of them.
    """
    model = values.get("hf_checkpoint")
    lines: list[str] = []
    if isinstance(model, str) and _HUB_NAME.fullmatch(model):
        lines.append(f"hf download {model} --local-dir {model}")
    prompts, evaluation = values.get("prompt_data") or [], values.get("eval_prompt_data") or {}
    prompts = prompts if isinstance(prompts, list) else [prompts]
    if layout is not None:
        files = dict.fromkeys([*prompts, *(file for group in evaluation.values() for file in group)])
        lines += [f"relax data convert --format {layout} {quote(file)} {quote(_converted(file))}" for file in files]
        prompts = [_converted(file) for file in prompts]
        evaluation = {name: [_converted(file) for file in group] for name, group in evaluation.items()}
        values |= {"prompt_data": prompts} if prompts else {}
        values |= {"eval_prompt_data": evaluation} if evaluation else {}
    length = values.get("rollout_max_prompt_len")
    if isinstance(model, str) and prompts and isinstance(length, int) and layout is not None:
        words = " ".join(quote(file) for file in prompts)
        lines.append(f"relax data validate {words} --tokenizer {quote(model)} --max-prompt-len {length}")
    return [*(render(line) for line in lines), "read migration.md: what needs you comes first"]


def _converted(file: str) -> str:
    return file.removesuffix(".parquet") + ".relax.parquet"
