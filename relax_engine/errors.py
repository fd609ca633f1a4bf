"""The root of every error that the engine raises on purpose.

What lives here: the two classes that the command line knows, and the way to the cause of a group. What does not: the
errors of one part (a reward, a checkpoint, the stream), which live beside it and derive from `RelaxError`.
"""

from __future__ import annotations


class RelaxError(Exception):
    """An error whose message alone tells a user what is wrong, with which value, and the way out.

    The command line prints it as `error: <message>` without a traceback.
    """


class ConfigError(RelaxError, ValueError):
    """A flag, a configuration file or a combination of fields that cannot run."""


def first_cause(error: BaseException) -> BaseException:
    """The first leaf of an exception group; any other error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
