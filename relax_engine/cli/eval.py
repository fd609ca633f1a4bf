"""`relax eval`: score a Hugging Face model on prompts, sampled and greedy."""

from __future__ import annotations

import argparse
import json

from relax_engine.config import parse_args
from relax_engine.utils.logging import configure_logging


def main(argv: list[str]) -> int:
    """Evaluate with the run flags in `argv`, plus `--limit N` and `--json`; returns 0.

    Raises:
        ConfigError: bad flags, or no data set.
        RelaxError: the engine, a prompt or a reward failed.
    """
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--limit", type=int, default=None)
    own.add_argument("--json", action="store_true")
    extra, rest = own.parse_known_args(argv)
    config = parse_args(rest, prog="relax eval", description=_DESCRIPTION)
    configure_logging("WARNING")
    from relax_engine.core.evaluate import evaluate

    results = evaluate(config, limit=extra.limit)
    if extra.json:
        print(json.dumps([result.to_dict() for result in results], indent=2))
        return 0
    for result in results:
        print(
            f"{result.dataset}: accuracy {result.accuracy:.4f} "
            f"({result.prompts} prompts x {result.samples_per_prompt} at temperature {result.temperature:g}), "
            f"greedy {result.greedy_accuracy:.4f}, mean length {result.response_length:.1f}, "
            f"truncated {result.truncated_ratio:.3f}, {result.seconds:.1f} s"
        )
    return 0


_DESCRIPTION = (
    "Score --hf-checkpoint on --eval-prompt-data: sampled by the --eval-* flags, and greedy. "
    "Beside the flags of a run: --limit N takes the first N prompts of each set, --json prints JSON."
)
