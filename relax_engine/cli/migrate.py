"""`relax migrate`: rewrite a recipe of another framework. This only parses and prints."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from relax_engine.migrate.launch import Framework
    from relax_engine.migrate.report import Report
    from relax_engine.migrate.survey import Survey

_FRAMEWORKS = ("verl", "redaccel", "slime", "relax")
_MOST_NEEDS = 40


def main(argv: list[str]) -> int:
    """Migrate one recipe, or survey many. Returns 0.

    Raises:
        MigrationError: the source cannot be migrated at all.
    """
    own, arguments = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, None)
    options = _parser().parse_args(own)
    framework = cast("Framework", options.framework)
    if options.survey:
        from relax_engine.migrate.survey import survey

        _print_survey(survey(framework, options.source))
        return 0
    if options.out is None:
        _parser().error("--out is required, unless --survey is given")
    from relax_engine.migrate.migrate import Choices, migrate

    choices = Choices(options.reward, options.data_source, options.rows, arguments, options.environment)
    _print_report(migrate(framework, options.source, options.out, choices), options.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    text = (
        "Rewrite a recipe of another framework: its launch script (read, never run) becomes run_NAME.sh and NAME.yaml, "
        "its reward becomes reward_NAME.py, and migration.md says what became of every setting. Arguments of the "
        "launch script follow after --."
    )
    parser = argparse.ArgumentParser(prog="relax migrate", description=text)
    parser.add_argument("framework", choices=_FRAMEWORKS, help="where the recipe is from")
    parser.add_argument(
        "source", type=Path, metavar="SRC", help="launch script; with --survey also a folder or JSON list"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the new recipe; its name is the recipe's")
    parser.add_argument("--reward", metavar="FILE.py:NAME", help="reward function or class, if the script names none")
    parser.add_argument(
        "--environment",
        metavar="FILE",
        help="tools, if the script names none: verl's YAML, or FILE.py:CLASS",
    )
    parser.add_argument("--data-source", metavar="NAME", help="keep what the reward does for this data_source only")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="rows to compare the old and the new reward on")
    parser.add_argument("--survey", action="store_true", help="write nothing; say how many settings of SRC map")
    return parser


def _print_report(report: Report, out: Path) -> None:
    counts = ", ".join(f"{count} {status}" for status, count in report.counts().items())
    print(f"{out}: {counts}; see {out / 'migration.md'}")
    for entry in report.entries:
        if entry.status == "needs you":
            print(f"needs you: {entry.key} {entry.value}: {entry.reason}")


def _print_survey(survey: Survey) -> None:
    counts = ", ".join(f"{count} {status}" for status, count in survey.statuses.items())
    print(f"{survey.recipes} recipes, {survey.given} settings: {counts}")
    print(f"{survey.share:.1%} mapped or explained; {len(survey.skipped)} scripts start no training")
    for (key, reason), count in survey.needs.most_common(_MOST_NEEDS):
        print(f"{count:5}  {key}: {reason}")
