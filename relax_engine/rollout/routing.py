"""Which of the usable engines gets a request: one interface, and the policies behind it.

What lives here: the choice. What does not: who is usable, and what a failure means (`pool`).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

PolicyName = Literal["least_load", "sticky", "cache_aware"]

_IMBALANCE = 1.25
_BLOCK = 32
_REMEMBERED = 1 << 16


class Candidate(Protocol):
    """An engine that gets requests."""

    outstanding: int

    @property
    def url(self) -> str:
        """Where it answers."""


C = TypeVar("C", bound=Candidate)


@dataclass(frozen=True, slots=True)
class Affinity:
    """What a request has in common with others: its session, and the token ids that it begins with."""

    session: str | None = None
    prompt: Sequence[int] = ()


class RoutingPolicy(Protocol):
    """Chooses an engine for a request."""

    def choose(self, engines: Sequence[C], samples: int, affinity: Affinity) -> C:
        """One of `engines`, of which there is one at least, for a request for `samples` responses."""


class LeastLoad:
    """The engine with the fewest samples under way."""

    def choose(self, engines: Sequence[C], samples: int, affinity: Affinity) -> C:
        """See `RoutingPolicy`."""
        return min(engines, key=lambda engine: engine.outstanding)


class Sticky:
    """Requests of one session go to one engine, as long as that one is not much busier than the others.

    Rendezvous hashing: an engine that leaves takes only its own sessions along, one that comes gets its share of all.
    The bound on the load is that of consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016):
    a session moves to its next engine while its own has more than 1.25 times the mean and a request more.
    """

    def choose(self, engines: Sequence[C], samples: int, affinity: Affinity) -> C:
        """See `RoutingPolicy`."""
        session = affinity.session
        if session is None:
            return LeastLoad().choose(engines, samples, affinity)
        return max(_balanced(engines, samples), key=lambda engine: _digest(f"{session} {engine.url}"))


@dataclass(slots=True)
class CacheAware:
    """The engine that was last given the longest beginning of the prompt, within the same bound on its load.

    Beginnings are compared in blocks of 32 tokens; the newest 65,536 of them are remembered.
    """

    _given: OrderedDict[bytes, str] = field(default_factory=OrderedDict)

    def choose(self, engines: Sequence[C], samples: int, affinity: Affinity) -> C:
        """See `RoutingPolicy`."""
        balanced = {engine.url: engine for engine in _balanced(engines, samples)}
        beginnings = list(_beginnings(affinity.prompt))
        holders = (self._given.get(beginning) for beginning in reversed(beginnings))
        chosen = next((balanced[url] for url in holders if url in balanced), None)
        if chosen is None:
            chosen = LeastLoad().choose(engines, samples, affinity)
        for beginning in beginnings:
            self._given[beginning] = chosen.url
            self._given.move_to_end(beginning)
        while len(self._given) > _REMEMBERED:
            self._given.popitem(last=False)
        return chosen


def routing_policy(name: PolicyName) -> RoutingPolicy:
    """The policy of that name, with nothing remembered."""
    policies: dict[PolicyName, type[RoutingPolicy]] = {
        "least_load": LeastLoad,
        "sticky": Sticky,
        "cache_aware": CacheAware,
    }
    return policies[name]()


def _balanced(engines: Sequence[C], samples: int) -> list[C]:
    """Engines that are not too busy for a request of so many samples; never none, for the idlest is among them."""
    mean = sum(engine.outstanding for engine in engines) / len(engines)
    return [engine for engine in engines if engine.outstanding <= _IMBALANCE * mean + samples]


def _beginnings(prompt: Sequence[int]) -> Iterator[bytes]:
    """A digest of the first block, of the first two, and so on."""
    digest = b""
    for end in range(_BLOCK, len(prompt) + 1, _BLOCK):
        digest = _digest(digest.hex() + repr(list(prompt[end - _BLOCK : end])))
        yield digest


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
