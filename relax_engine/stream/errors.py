"""What can go wrong in the stream; every message names the thing, its state and the way out."""

from __future__ import annotations


class StreamError(RuntimeError):
    """Base class of the stream's failures."""


class StreamTimeoutError(StreamError, TimeoutError):
    """A wait reached its deadline; the message says what was missing, since when and from whom."""


class StreamUnavailableError(StreamError):
    """The controller is dead or does not answer."""


class StreamRestartingError(StreamUnavailableError):
    """The controller died and is being restarted; whether it carried out the call is unknown."""


class PartitionDroppedError(StreamError):
    """The partition existed and was dropped."""


class BlockLostError(StreamError):
    """A block has neither a living producer nor a living storage unit; its rows must be put again."""


class BudgetError(StreamError):
    """A batch does not fit the byte or row budget, even when the stream is empty."""
