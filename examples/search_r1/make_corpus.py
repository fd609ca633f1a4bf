"""Write `corpus.jsonl`: invented places, and three facts about each. No model can know them, so it has to search.

    python -m examples.search_r1.make_corpus

One JSON object a line, as Search-R1 has them: `id`, and `contents`, what is searched and shown.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

ATTRIBUTES = ("capital", "river", "ruler")
PLACES = 1000
SYLLABLES = tuple(first + vowel for first in "bdklmnrt" for vowel in "aeiou")
NAMES = tuple(first + second for first in SYLLABLES for second in SYLLABLES if first != second)


@dataclass(frozen=True)
class Place:
    """A place, and its facts by attribute."""

    name: str
    facts: Mapping[str, str]

    @property
    def contents(self) -> str:
        """What the corpus says of it.

        >>> Place("tolu", {"capital": "bena", "river": "mika"}).contents
        'tolu: capital bena, river mika'
        """
        return f"{self.name}: " + ", ".join(" ".join(fact) for fact in self.facts.items())

    @classmethod
    def read(cls, contents: str) -> Place:
        """The place of a line of the corpus."""
        name, _, facts = contents.partition(": ")
        return cls(name, dict(fact.split(" ") for fact in facts.split(", ")))


def make_place(name: str, rng: random.Random, places: Collection[str] = ()) -> Place:
    """A place of that name; no syllable of its name or of its facts is another's, and no fact is one of `places`."""
    syllables = [each for each in SYLLABLES if each not in (name[:2], name[2:])]
    while True:
        drawn = iter(rng.sample(syllables, 2 * len(ATTRIBUTES)))
        facts = {attribute: next(drawn) + next(drawn) for attribute in ATTRIBUTES}
        if not any(fact in places for fact in facts.values()):
            return Place(name, facts)


def make_corpus(places: int = PLACES, *, seed: int = 0) -> list[dict[str, str]]:
    """The rows. A place's name is in no other row, so a search for it finds one."""
    rng = random.Random(seed)
    names = rng.sample(NAMES, places)
    taken = set(names)
    return [{"id": str(number), "contents": make_place(name, rng, taken).contents} for number, name in enumerate(names)]


def main() -> None:
    """Write the file beside this one."""
    lines = [json.dumps(row) for row in make_corpus()]
    Path(__file__).with_name("corpus.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
