"""`--rm-type ifeval` and `ifbench`: does the response follow all instructions of its prompt that a program can check?

The row's metadata names them: `instruction_id_list`, and `kwargs` with one dictionary of arguments each, as the data
sets of IFEval (arXiv 2311.07911) and IFBench (arXiv 2507.02833) have them. Both names take the instructions of both.
"""

from __future__ import annotations

import itertools
from typing import Any

from relax_engine.rewards.extract import after_thoughts
from relax_engine.rewards.instructions.checks import follows, instruction_ids
from relax_engine.types import Sample


def instruction_reward(args: Any, sample: Sample, *, loose: bool = False, partial: bool = False) -> float:
    """1.0 if what follows the thoughts follows every instruction, else 0.0.

    `loose` lets a response pass each instruction also without asterisks, its first line, its last line, or several of
    these. `partial` gives the share of the instructions that are followed instead.

    Raises:
        ValueError: the metadata has no instructions, an unknown one, or arguments that do not fit.
    """
    ids = sample.metadata.get("instruction_id_list")
    arguments = sample.metadata.get("kwargs")
    if not ids:
        raise ValueError("the row's metadata has no `instruction_id_list`, which names the instructions to check")
    if arguments is None:
        arguments = [{}] * len(ids)
    if len(arguments) != len(ids):
        raise ValueError(f"the row's metadata has {len(ids)} instructions and {len(arguments)} `kwargs`; give one each")
    response = after_thoughts(sample.response)
    texts = variants(response) if loose else [response]
    followed = [
        any(follows(text, name, given or {}) for text in texts) for name, given in zip(ids, arguments, strict=True)
    ]
    return sum(followed) / len(followed) if partial else float(all(followed))


def warm_up() -> None:
    """Import the checks."""
    instruction_ids()


def variants(response: str) -> list[str]:
    """The eight texts of IFEval's loose reading."""
    lines = response.split("\n")
    cuts = [lines, lines[1:], lines[:-1], lines[1:-1]]
    texts = [response, *("\n".join(cut).strip() for cut in cuts[1:])]
    return [text.replace("*", "") if plain else text for plain, text in itertools.product((False, True), texts)]
