"""Logging set-up for processes that a person watches, and credentials out of every process's records.

What lives here: the handler, the line format, and records that redact themselves. What does not: progress bars
(`progress`) and metrics (`relax_engine.observe`).
"""

from __future__ import annotations

import logging
import os
import sys
import traceback

from relax_engine.utils.redact import redact

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def configure_logging(level: int | str | None = None) -> None:
    """Send log lines of this process to standard error, once; a second call only changes the level.

    `level` defaults to the environment variable RELAX_LOG_LEVEL, else INFO. On a terminal the lines go through
    rich, so that they do not break a progress bar; elsewhere they are plain, one record per line.

    Raises:
        ValueError: an unknown level name.
    """
    chosen = level if level is not None else os.environ.get("RELAX_LOG_LEVEL", "INFO").upper()
    redact_records()
    root = logging.getLogger()
    root.setLevel(chosen)
    if not any(getattr(handler, "relax_handler", False) for handler in root.handlers):
        root.addHandler(_handler())


class RedactedRecord(logging.LogRecord):
    """A record whose message and traceback show no credentials, whichever handler writes them."""

    def getMessage(self) -> str:
        """The message with its arguments."""
        if self.exc_info and not self.exc_text:
            self.exc_text = redact("".join(traceback.format_exception(*self.exc_info)).rstrip("\n"))
        return redact(super().getMessage())


def redact_records() -> None:
    """From now on, let all log records of this process be redacted ones."""
    logging.setLogRecordFactory(RedactedRecord)


def _handler() -> logging.Handler:
    if sys.stderr.isatty():
        from rich.logging import RichHandler

        from relax_engine.utils.progress import console

        handler: logging.Handler = RichHandler(console=console(), show_path=False, markup=False)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(_FORMAT))
    handler.relax_handler = True  # type: ignore[attr-defined]
    return handler
