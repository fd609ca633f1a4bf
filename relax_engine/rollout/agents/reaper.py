"""A small process that ends the agents of a rollout role that died.

Run as a script with the standard library alone. Lines on its standard input name process groups: `+ID` when an agent
starts, `-ID` when it was ended. At the end of the input, which the role's death brings, all groups left are killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        change = groups.add if line[:1] == "+" else groups.discard
        change(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
