"""The environment: a search engine over `corpus.jsonl` that the model asks with `<search>...</search>` (Search-R1).

What lives here: the turns. What does not: ranking (`bm25`), and the reward, which is `--rm-type search_em`.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

from examples.search_r1.bm25 import BM25
from relax_engine.rollout.environment import BaseInteractionEnv, Observation

CORPUS = Path(__file__).with_name("corpus.jsonl")
NOTHING = "nothing found"
_SEARCH = re.compile(r"<search>([^<]*)</search>")


@functools.cache
def index() -> tuple[list[str], BM25]:
    """The texts of the corpus, and their index; made once in a process."""
    texts = [json.loads(line)["contents"] for line in CORPUS.read_text().splitlines()]
    return texts, BM25(texts)


class SearchEnv(BaseInteractionEnv):
    """Answers searches; a response without one is the last. `info` has `searches`.

    Args:
        top_k: Texts shown for a search, one per line.
    """

    def __init__(self, top_k: int) -> None:
        self.top_k, self.searches = top_k, 0

    def reset(self) -> tuple[Observation, dict[str, Any]]:
        """Begin."""
        return {"obs_str": ""}, {}

    def step(self, response_text: str) -> tuple[Observation, bool, dict[str, Any]]:
        """Search for the last query of a response."""
        queries = _SEARCH.findall(response_text)
        self.searches += bool(queries)
        if not queries:
            return {"obs_str": ""}, True, {"searches": self.searches}
        texts, ranking = index()
        shown = "\n".join(texts[found] for found, _ in ranking.search(queries[-1], self.top_k)) or NOTHING
        observation = {"obs_str": f"<information>{shown}</information>", "role": "tool"}
        return observation, False, {"searches": self.searches}


def build_env(sample: Any = None, args: Any = None, **_: Any) -> SearchEnv:
    """What the turns of one sample act on; `search_top_k` is a key of `--custom-config-path`."""
    return SearchEnv(args.search_top_k)
