"""`relax rollouts RUN`: list, show and compare the samples that a run recorded.

What lives here: flags, and printing. What does not: queries (`relax_engine.observe.rollouts`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_engine.observe.rollouts.media import DIRECTORY as MEDIA

if TYPE_CHECKING:
    from relax_engine.observe.rollouts.query import Rollouts

_UNWRAPPED = 160  # columns where no terminal gives a width
_LISTED_CHARACTERS = 60
_COMPARED = ("reward", "response_length", "truncated", "mean_log_prob")


def main(argv: list[str]) -> int:
    """Print what `argv` asks for.

    Raises:
        QueryError: nothing was recorded, or there is no such field, filter or sample.
    """
    options = _parser().parse_args(argv)
    from relax_engine.observe.rollouts.query import DEFAULT_COLUMNS, Rollouts

    with Rollouts(options.run) as rollouts:
        if options.show is not None:
            step, index = options.show
            _print_sample(rollouts.sample(step, index), options)
        elif options.compare is not None:
            with Rollouts(options.compare) as other:
                _print_rows(_compared(rollouts, other, options.where), options)
        elif options.steps:
            _print_rows(rollouts.steps(options.where), options)
        else:
            columns = options.columns.split(",") if options.columns else DEFAULT_COLUMNS
            rows = rollouts.find(
                options.where, sort=options.sort, columns=columns, limit=options.limit, offset=options.offset
            )
            _print_rows(rows, options)
            if not options.json:
                print(f"{len(rows)} of {rollouts.count(options.where)} samples")
    return 0


def _compared(left: Rollouts, right: Rollouts, where: Sequence[str]) -> list[dict[str, Any]]:
    """Figures of both runs by step, and the difference of their rewards."""
    ours = {row["step"]: row for row in left.steps(where)}
    theirs = {row["step"]: row for row in right.steps(where)}
    rows = []
    for step in sorted({*ours, *theirs}):
        row: dict[str, Any] = {"step": step}
        for name in _COMPARED:
            row[f"{name} 1"], row[f"{name} 2"] = ours.get(step, {}).get(name), theirs.get(step, {}).get(name)
        rewards = (row["reward 1"], row["reward 2"])
        row["reward 2-1"] = None if None in rewards else rewards[1] - rewards[0]
        rows.append(row)
    return rows


def _print_rows(rows: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE)
    for name in rows[0] if rows else ():
        numbers = all(isinstance(row[name], int | float | None) for row in rows)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    console = Console()
    Console(width=console.width if sys.stdout.isatty() else _UNWRAPPED, highlight=False).print(table)


def _print_sample(sample: Mapping[str, Any], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(sample, indent=2))
        return
    lists = ("tokens", "loss_mask", "log_probs", "advantages", "train_log_probs", "ref_log_probs")
    for name, value in sample.items():
        if name not in (*lists, "prompt", "response", "media") and value is not None:
            print(f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}")
    for medium in sample["media"]:
        files = ", ".join(str(options.run / "rollouts" / MEDIA / file) for file in medium["files"]) or "not kept"
        print(f"{medium['kind']}: {files} (from {_printable(medium['source'])})")
    print(f"\n-- prompt\n{_printable(sample['prompt'])}\n\n-- response\n{_printable(sample['response'])}\n")
    print(f"{'token':>8} {'mask':>4} {'log-prob':>9} {'trained':>9} {'advantage':>9}")
    start = sample["prompt_length"]
    for position, token in enumerate(sample["tokens"][start:]):
        cells = [_at(sample[name], position) for name in ("log_probs", "train_log_probs", "advantages")]
        print(f"{token:>8} {sample['loss_mask'][position]:>4} {' '.join(cells)}")


def _at(values: Sequence[float | None] | None, position: int) -> str:
    value = values[position] if values is not None else None
    return f"{'':>9}" if value is None else f"{value:>9.4f}"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = _printable(str(value)).replace("\n", "⏎")
    return text if len(text) <= _LISTED_CHARACTERS else f"{text[: _LISTED_CHARACTERS - 1]}…"


def _printable(text: str | None) -> str:
    """What a model wrote, without characters that would command a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text or "")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="relax rollouts",
        description="Samples that a run recorded. Filters are FIELD OPERATOR VALUE, all of them hold: "
        "-w 'reward>0.5' -w status=truncated -w 'response~word' -w step=10..20 -w 'reward.format<1'.",
    )
    parser.add_argument("run", type=Path, help="run directory, or a directory in which one was kept")
    parser.add_argument("-w", "--where", action="append", default=[], metavar="FILTER", help="may be repeated")
    parser.add_argument(
        "--sort", default="step:desc", metavar="FIELD", help="FIELD:desc: the largest first (step:desc)"
    )
    parser.add_argument("--columns", metavar="A,B", help="fields to show")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="how many samples (%(default)s)")
    parser.add_argument("--offset", type=int, default=0, metavar="N", help="leave out the first N")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--show", type=int, nargs=2, metavar=("STEP", "INDEX"), help="one sample, token by token")
    what.add_argument("--steps", action="store_true", help="figures by step instead")
    what.add_argument("--compare", type=Path, metavar="RUN", help="figures by step, beside another run's")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
