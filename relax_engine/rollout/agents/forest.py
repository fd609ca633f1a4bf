"""The contexts of one session: what was sent and sampled, token for token, as trees.

What lives here: plain state. What does not: rendering and requests (`session`), and samples (`exports`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from relax_engine.rollout.conversation_media import ConversationMedia
from relax_engine.types import Message, WeightVersionSpan


@dataclass(slots=True, eq=False)
class Node:
    """A committed state: a history that ends with an answer of the model, and its tokens.

    `tokens` are all of the context. Behind the first `prompt_length` of them, every token has an entry in `loss_mask`
    (1 where the model sampled it) and `log_probs` (0.0 where it did not), and `versions` cover the sampled ones.
    `media` are those of all messages.
    """

    keys: tuple[str, ...]
    context: str
    messages: tuple[Message, ...]
    tokens: list[int]
    prompt_length: int
    loss_mask: list[int]
    log_probs: list[float]
    versions: list[WeightVersionSpan]
    finish: str
    media: ConversationMedia = field(default_factory=ConversationMedia)
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)


class SessionForest:
    """All committed states of a session.

    A request goes on from the longest committed history that it begins with: its prompt is that state's tokens, then
    what is new. Several requests may go on from one state (branches), and a request that goes on from none is the root
    of another tree. Invariant: a node's tokens begin with its parent's.

    Trace::

        [u1]            -> root, answer a1              node (u1 a1)
        [u1 a1 u2]      -> goes on, answer a2           node (u1 a1 u2 a2), child of the first
        [u1 a1 u3]      -> goes on from the first too: a branch
        [u4]            -> another tree
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def find(self, keys: Sequence[str], context: str) -> Node | None:
        """The longest committed history that `keys` begin with and go beyond; of equal ones the newest."""
        best: Node | None = None
        for node in self.nodes:
            size = len(node.keys)
            if node.context != context or size >= len(keys) or tuple(keys[:size]) != node.keys:
                continue
            if best is None or size >= len(best.keys):
                best = node
        return best

    def match(self, keys: Sequence[str], context: str) -> list[Node]:
        """The states whose history is exactly `keys`."""
        return [node for node in self.nodes if node.context == context and node.keys == tuple(keys)]

    def commit(self, node: Node) -> None:
        """Add a state, behind its parent."""
        self.nodes.append(node)
        if node.parent is not None:
            node.parent.children.append(node)

    def leaves(self) -> list[Node]:
        """States that nothing went on from, in order of their commitment: one, if the history is linear."""
        return [node for node in self.nodes if not node.children]
