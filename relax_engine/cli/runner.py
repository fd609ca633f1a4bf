"""How a command ends: its exit code, and what a user sees when it fails.

What lives here: the frame around every command. What does not: commands.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from relax_engine.errors import RelaxError
from relax_engine.utils.redact import redact

Command = Callable[[list[str]], int]

INTERRUPTED = 130
TERMINATED = 143


def run_command(command: Command, argv: Sequence[str]) -> int:
    """Call `command(argv)` and return its exit code.

    A `RelaxError` becomes one `error: ...` message on standard error and code 1; `--debug` (taken out of `argv`
    wherever it stands) or RELAX_DEBUG=1 adds the traceback. Ctrl-C gives 130. SIGTERM unwinds like an exception, so
    that processes are ended and files closed, and gives 143. Any other exception is a defect and propagates.
    """
    debug = "--debug" in argv or os.environ.get("RELAX_DEBUG") == "1"
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # hooks are named relative to where the command runs
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        return command([word for word in argv if word != "--debug"])
    except RelaxError as error:
        if debug:
            print(redact(traceback.format_exc()), file=sys.stderr)
        print("error: " + redact(message_of(error)).replace("\n", "\n       "), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`relax ... | head`); Python must not fail again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        signal.signal(signal.SIGTERM, previous)


def message_of(error: RelaxError) -> str:
    """The message; of an error that crossed a Ray call, the original's instead of the remote traceback."""
    cause = getattr(error, "cause", None)
    return str(cause if isinstance(cause, RelaxError) else error)


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(TERMINATED)
