"""`relax`: one command line for everything.

What lives here: the table of commands. What does not: the commands, each a module of this package with
`main(argv) -> int`, imported only when it is called.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from relax_engine.cli.runner import run_command
from relax_engine.errors import RelaxError
from relax_engine.utils.suggest import nearest

COMMANDS: dict[str, str] = {
    "train": "Train a policy: reinforcement learning, or supervised with --loss-type sft.",
    "doctor": "Check the flags of a run, and show what it would do and need.",
    "replay": "Recompute rewards, advantages and losses that a run recorded, and compare.",
    "reproduce": "Train again as a recorded run did, and compare step by step.",
    "rollouts": "List, show and compare the samples that a run recorded.",
    "top": "Show a run that goes on, in the terminal.",
    "trace": "Write where the time of a step went, for Perfetto, and say which group held it.",
    "ui": "Show runs in a browser: metrics, samples, phases, lineage; live and afterwards.",
    "eval": "Evaluate a model on prompts.",
    "import": "Convert a Hugging Face model into a training checkpoint.",
    "export": "Convert a training checkpoint into a Hugging Face model.",
    "data": "Convert, validate, inspect, split and mix prompt files.",
    "migrate": "Rewrite a recipe of verl, RedAccel, slime or Relax for this engine.",
    "simulate": "Predict step time, utilization and staleness from phase times, or divide devices among roles.",
    "autoscaler": "Watch the autoscaler of a run, or scale a run from outside.",
    "elastic": "Give a run more or fewer engines, and look at those that it has.",
    "lineage": "Look into the artifact store: where a file came from, and what came from it.",
}


class UnknownCommandError(RelaxError):
    """A word that is no command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    return run_command(_dispatch, sys.argv[1:] if argv is None else argv)


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if argv[0] == "--version":
        from relax_engine import __version__

        print(__version__)
        return 0
    name = argv[0]
    if name not in COMMANDS:
        match = nearest(name, COMMANDS)
        hint = f"; did you mean `relax {match}`?" if match else f"; commands: {', '.join(COMMANDS)}"
        raise UnknownCommandError(f"there is no command {name!r}{hint}")
    # `import` is a keyword, so its module has an underscore.
    module = importlib.import_module(f"relax_engine.cli.{'import_' if name == 'import' else name}")
    code: int = module.main(argv[1:])
    return code


def usage() -> str:
    """The text of `relax --help`."""
    lines = [f"  {name:<10} {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: relax COMMAND [flags]",
            "",
            *lines,
            "",
            "`relax COMMAND --help` lists the flags of a command. --debug shows tracebacks of errors.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
