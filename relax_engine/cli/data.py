"""`relax data`: convert, validate, inspect, split and mix training data.

All work is `data_prep`'s; this only parses and prints.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from data_prep.report import ValidationReport

Command = Callable[[argparse.Namespace], int]

_COUNTS = ("duplicates", "near_duplicates", "leaks")


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
    parser = argparse.ArgumentParser(
        prog="relax data", description="Convert, validate, inspect, split and mix training data."
    )
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
    validating.add_argument("--task", default="text", help="text, multiple-choice, multimodal or agentic")
    validating.add_argument("--rm-type", metavar="NAME", help="reward that must be able to use every label")
    validating.add_argument("--unique", action="store_true", help="no prompt may occur twice")
    validating.add_argument("--near", type=float, metavar="X", help="no two prompts of similarity X or more (0 to 1)")
    validating.add_argument("--against", nargs="+", metavar="FILE", help="evaluation prompts that must not occur")
    validating.add_argument(
        "--max-bad-share", type=float, default=0.0, metavar="X", help="share of rows that may break a rule (default: 0)"
    )
    validating.add_argument("--quarantine", metavar="FILE", help="write the bad rows, with reasons, to this JSONL file")
    validating.add_argument("--clean", metavar="FILE", help="write the good rows to this Parquet file")
    validating.set_defaults(command=_validate)

    text = "say what a file is: rows, columns, layout, first row"
    inspecting = commands.add_parser("inspect", help=text, description=text)
    inspecting.add_argument("file", nargs="+", help="Parquet or JSON file, directory, glob or URL")
    inspecting.set_defaults(command=_inspect)

    text = "write parts of a converted dataset, without a prompt in two of them"
    splitting = commands.add_parser("split", help=text, description=text)
    splitting.add_argument("file", nargs="+", help="Parquet file")
    splitting.add_argument("--out", required=True, metavar="DIR", help="folder that receives NAME.parquet of each")
    splitting.add_argument(
        "--parts", required=True, nargs="+", metavar="NAME=X", help="share (train=0.9) or number of rows (test=500)"
    )
    splitting.add_argument("--seed", type=int, default=0, help="of the choice (default: 0)")
    splitting.add_argument("--input-key", default="prompt", help="column of the prompt (default: prompt)")
    splitting.set_defaults(command=_split)

    text = "sample from converted datasets by weights, and shuffle"
    mixing = commands.add_parser("mix", help=text, description=text)
    mixing.add_argument("source", nargs="+", metavar="FILE=WEIGHT", help="Parquet file and weight (default: 1)")
    mixing.add_argument("--out", required=True, metavar="FILE", help="Parquet file to write")
    mixing.add_argument("--rows", type=int, metavar="N", help="rows to write (default: all that the weights allow)")
    mixing.add_argument("--seed", type=int, default=0, help="of choice and order (default: 0)")
    mixing.add_argument("--no-shuffle", action="store_true", help="keep the order of the datasets and their rows")
    mixing.add_argument("--repeat", action="store_true", help="use rows again where a dataset has too few")
    mixing.set_defaults(command=_mix)
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
    from data_prep.sift import keep_good, set_aside
    from data_prep.validate import Checks, validate

    report = validate(
        options.file,
        checks=Checks(
            options.task, options.rm_type, options.unique, options.near, options.against, options.max_bad_share
        ),
        tokenizer=options.tokenizer,
        max_prompt_tokens=options.max_prompt_len,
        input_key=options.input_key,
        label_key=options.label_key,
        docs=options.docs,
    )
    _print_report(report)
    if not report.bad or not (options.quarantine or options.clean):
        report.raise_if_failed()
    if options.quarantine:
        print(f"{options.quarantine}: {set_aside(options.file, report, options.quarantine)} rows set aside")
    if options.clean:
        print(f"{options.clean}: {keep_good(options.file, report, options.clean)} rows")
    return 0


def _inspect(options: argparse.Namespace) -> int:
    import json

    from data_prep.inspect import describe
    from data_prep.sources import parse_sources

    for source in parse_sources(options.file):
        found = describe(source)
        rows = "" if found.rows is None else f", {found.rows} rows"
        print(f"{found.path}: {found.bytes} bytes{rows}\nlayout: {found.layout}")
        for name, kind in found.columns.items():
            print(f"  {name}: {kind}")
        print(f"first row: {json.dumps(found.first, ensure_ascii=False, default=str)}")
    return 0


def _split(options: argparse.Namespace) -> int:
    from data_prep.split import split

    parts = dict(_named_number(part, "NAME=X") for part in options.parts)
    written = split(options.file, parts, options.out, seed=options.seed, input_key=options.input_key)
    for name, rows in written.items():
        print(f"{options.out}/{name}.parquet: {rows} rows")
    return 0


def _mix(options: argparse.Namespace) -> int:
    from data_prep.mix import mix

    inputs = [_named_number(source if "=" in source else f"{source}=1", "FILE=WEIGHT") for source in options.source]
    result = mix(
        inputs,
        options.out,
        rows=options.rows,
        seed=options.seed,
        shuffle=not options.no_shuffle,
        repeat=options.repeat,
    )
    for (name, _), rows in zip(inputs, result.taken, strict=True):
        print(f"{rows} rows of {name}")
    print(f"{result.path}: {sum(result.taken)} rows")
    return 0


def _named_number(text: str, form: str) -> tuple[str, float]:
    from data_prep.errors import DataError

    name, _, number = text.rpartition("=")
    try:
        return name, float(number)
    except ValueError as error:
        raise DataError(f"{text!r} is not of the form {form}") from error


def _print_report(report: ValidationReport) -> None:
    for rule in report.rules:
        print(f"{'ok' if rule.ok else 'FAIL':4}  {rule.rule:14} {rule.description} ({rule.failed} rows fail)")
    tokens = report.stats.get("prompt_tokens")
    lengths = f", prompts of {tokens['min']} to {tokens['max']} tokens" if tokens else ""
    counts = ", ".join(f"{report.stats[name]} {name.replace('_', ' ')}" for name in _COUNTS if report.stats.get(name))
    print(f"{report.path}: {report.rows} rows{lengths}{', ' if counts else ''}{counts}")
    if report.docs is not None:
        print(f"data documentation: {report.docs / 'index.html'}")
