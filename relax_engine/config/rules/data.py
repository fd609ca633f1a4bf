"""Rules about prompt files: they exist, and have the columns that flags name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig

if TYPE_CHECKING:
    from collections.abc import Sequence


@rule
def prompts_are_named(config: RunConfig, report: Reporter) -> Findings:
    """There are prompts."""
    if not config.data.prompt_data:
        yield report.error("prompt_data", "no prompts", "--prompt-data FILE.parquet")


@rule
def prompt_files(config: RunConfig, report: Reporter) -> Findings:
    """Training files exist and have the input, label and media columns."""
    yield from _files(config, report, "prompt_data", config.data.prompt_data)


@rule
def eval_files(config: RunConfig, report: Reporter) -> Findings:
    """Evaluation files exist and have the same columns."""
    for paths in config.evaluation.eval_prompt_data.values():
        yield from _files(config, report, "eval_prompt_data", paths)


@rule
def template_arguments_are_used(config: RunConfig, report: Reporter) -> Findings:
    """Template arguments need a template."""
    if config.data.apply_chat_template_kwargs and not config.data.apply_chat_template:
        yield report.warning(
            "apply_chat_template_kwargs apply_chat_template", "without effect", "add --apply-chat-template"
        )


def _files(config: RunConfig, report: Reporter, flag: str, paths: Sequence[str]) -> Findings:
    from data_prep.errors import DataError
    from data_prep.files import exists
    from data_prep.readers import column_names
    from data_prep.sources import parse_spec

    for file in parse_spec(list(paths)):
        try:
            columns = column_names(file) if exists(file.path) else None
        except DataError as error:
            yield report.error(flag, f"{file.path} cannot be read: {error}", "convert it to Parquet or JSONL")
            continue
        if columns is None:
            yield report.error(flag, f"{file.path} does not exist", "correct the path")
            continue
        if not columns:
            yield report.error(flag, f"{file.path} has no rows", "give a file with at least one prompt")
            continue
        for name, column in _named_columns(config):
            if column not in columns:
                yield report.error(
                    f"{flag} {name}",
                    f"{file.path} has no column {column!r}, but {', '.join(columns)}",
                    f"--{name.replace('_', '-')} with one of these, or convert the file first",
                )


def _named_columns(config: RunConfig) -> list[tuple[str, str]]:
    data = config.data
    named = [("input_key", data.input_key)]
    if data.label_key is not None:
        named.append(("label_key", data.label_key))
    if data.rejected_key is not None:
        named.append(("rejected_key", data.rejected_key))
    return named + [("multimodal_keys", str(column)) for column in config.media.multimodal_keys.values()]
