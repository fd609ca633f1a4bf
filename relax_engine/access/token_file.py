"""The token of a run on disk, readable by its owner alone, for as long as the run goes on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import SecretStr

from relax_engine.errors import RelaxError

TOKEN_FILE = "api_token"


class TokenFileError(RelaxError):
    """There is no token to read."""


@contextlib.contextmanager
def token_file(run_dir: Path, token: SecretStr | None) -> Iterator[None]:
    """`api_token` in `run_dir` with mode 0600 inside the block; it is gone afterwards, and from no artifact's files."""
    path = run_dir / TOKEN_FILE
    path.unlink(missing_ok=True)
    if token is not None:
        # O_EXCL follows no link and takes over no file that somebody else has made and can read.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token.get_secret_value() + "\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def read_token(path: Path) -> SecretStr:
    """The token in a file, or in the `api_token` of a run directory.

    Raises:
        TokenFileError: it cannot be read, or is empty.
    """
    file = path / TOKEN_FILE if path.is_dir() else path
    try:
        text = file.read_text().strip()
    except OSError as error:
        raise TokenFileError(
            f"no token at {file}: {error.strerror}. It is there while a run goes on, for its user alone"
        ) from error
    if not text:
        raise TokenFileError(f"the token file {file} is empty")
    return SecretStr(text)
