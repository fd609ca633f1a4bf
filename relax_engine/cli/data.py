"""`relax data`: convert and validate training data. All work is `data_prep`'s; this only parses and prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from data_prep.report import ValidationReport

Command = Callable[[argparse.Namespace], int]


def main(argv: list[str]) -> int:
    """Run one data command. Returns 0, or 1 when the data could not be converted or broke a rule (said on stderr)."""
    options = _parser().parse_args(argv)
    from relax_engine.errors import RelaxError

    command: Command = options.command
    try:
        return command(options)
    except RelaxError as error:
        print(f"relax data: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="relax data", description="Convert and validate training data.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    text = "write a dataset of another framework as Parquet with prompt, label and metadata"
    converting = commands.add_parser("convert", help=text, description=text)
    converting.add_argument(
        "source", nargs="+", help="Parquet or JSON file, directory, glob or URL, or a slice: data.parquet[100:200]"
    )
    converting.add_argument("destination", help="Parquet file to write")
    converting.add_argument("--format", default="auto", help="layout of the source (default: told from its columns)")
    converting.add_argument("--prompt-column", metavar="NAME", help="column of the prompt, for a plain table")
    converting.add_argument("--label-column", metavar="NAME", help="column of the label, for a plain table")
    converting.add_argument("--media-root", metavar="DIR", help="folder of the media files (default: the source's own)")
    converting.add_argument("--fetch-media", action="store_true", help="fetch media that are given by URL")
    converting.add_argument(
        "--quarantine", metavar="FILE", help="set bad rows aside in this JSONL file, with reasons, and go on"
    )
    converting.add_argument(
        "--max-bad-share", type=float, default=1.0, metavar="X", help="share of bad rows to go on with (default: any)"
    )
    converting.set_defaults(command=_convert)

    text = "check prompts and labels, and list the rows that cannot be trained on"
    validating = commands.add_parser("validate", help=text, description=text)
    validating.add_argument("file", nargs="+", help="Parquet or JSONL file, or a slice of one")
    validating.add_argument("--tokenizer", metavar="DIR", help="Hugging Face directory; counts the prompts' tokens")
    validating.add_argument(
        "--max-prompt-len", type=int, metavar="N", help="longest prompt in tokens (default: the model's context less 1)"
    )
    validating.add_argument("--input-key", default="prompt", help="column of the prompt (default: prompt)")
    validating.add_argument("--label-key", default="label", help="column of the label (default: label)")
    validating.add_argument("--docs", metavar="DIR", help="folder that receives the data documentation as HTML")
    validating.set_defaults(command=_validate)
    return parser


def _convert(options: argparse.Namespace) -> int:
    from data_prep.convert import ConvertOptions, convert
    from data_prep.formats.options import ColumnOptions

    columns = ColumnOptions(options.prompt_column, options.label_column)
    result = convert(
        options.source,
        options.destination,
        format=options.format,
        options=ConvertOptions(columns, options.media_root, options.fetch_media),
        quarantine=options.quarantine,
        max_bad_share=options.max_bad_share,
    )
    aside = f"; {result.bad} rows set aside in {options.quarantine}" if result.bad else ""
    print(f"{result.path}: {result.rows} rows of layout {result.format}{aside}")
    return 0


def _validate(options: argparse.Namespace) -> int:
    from data_prep.validate import validate

    report = validate(
        options.file,
        tokenizer=options.tokenizer,
        max_prompt_tokens=options.max_prompt_len,
        input_key=options.input_key,
        label_key=options.label_key,
        docs=options.docs,
    )
    _print_report(report)
    report.raise_if_failed()
    return 0


def _print_report(report: ValidationReport) -> None:
    for rule in report.rules:
        print(f"{'FAIL' if rule.failed else 'ok':4}  {rule.rule:14} {rule.description} ({rule.failed} rows fail)")
    tokens = report.stats.get("prompt_tokens")
    lengths = f", prompts of {tokens['min']} to {tokens['max']} tokens" if tokens else ""
    print(f"{report.path}: {report.rows} rows{lengths}")
    if report.docs is not None:
        print(f"data documentation: {report.docs / 'index.html'}")
