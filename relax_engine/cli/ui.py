"""`relax ui RUN`: the dashboard, on this machine alone unless told otherwise."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path

from relax_engine.errors import RelaxError

_DEFAULT_ROOT = Path("build/runs")
_TOKEN_BYTES = 24


class UiError(RelaxError):
    """The dashboard cannot be started."""


def main(argv: list[str]) -> int:
    """Serve until interrupted.

    Raises:
        PlaceError: there is nothing to show.
        UiError: it would be open to others without a token.
    """
    options = _parser().parse_args(argv)
    import uvicorn
    from pydantic import SecretStr

    from relax_engine.observe.ui.places import Places
    from relax_engine.observe.ui.server import dashboard

    token = None if options.no_token else SecretStr(secrets.token_urlsafe(_TOKEN_BYTES))
    if options.token_file is not None:
        from relax_engine.access.token_file import read_token

        token = read_token(options.token_file)
    if token is None and options.host not in ("127.0.0.1", "localhost", "::1"):
        raise UiError(f"--no-token with --host {options.host} would show runs to everyone who reaches this machine")
    here = Path(options.run).is_dir()
    root = Path(options.run) if here else _fetched(options.run, options.store)
    app = dashboard(Places(root, None if here else options.run), token, options.store)
    listener = uvicorn.Config(app, options.host, options.port, log_level="warning")
    socket = listener.bind_socket()
    socket.listen()  # whoever opens the address at once waits for the server, and is not refused
    port = socket.getsockname()[1]
    # Behind the `#`, the token is sent to no server and stands in no log.
    print(f"http://{options.host}:{port}/" + (f"#token={token.get_secret_value()}" if token else ""), flush=True)
    uvicorn.Server(listener).run([socket])
    return 0


def _fetched(ref: str, store_url: str | None) -> Path:
    """The files of a run in the artifact store."""
    from relax_engine.lineage import ArtifactStore
    from relax_engine.lineage.errors import LineageError

    try:
        return ArtifactStore.open(store_url, create=False).fetch(ref)
    except (LineageError, FileNotFoundError) as error:
        raise UiError(f"{ref} is neither a directory nor a run of the artifact store: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="relax ui", description="Metrics, samples, phases and lineage of runs, live and afterwards, in a browser."
    )
    parser.add_argument(
        "run",
        nargs="?",
        default=str(_DEFAULT_ROOT),
        help="run directory, directory of runs, or reference of a run in the store (%(default)s)",
    )
    parser.add_argument("--store", metavar="URL", help="artifact store (default: $RELAX_ARTIFACTS, else ./artifacts)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8265, help="0: any free one (%(default)s)")
    token = parser.add_mutually_exclusive_group()
    token.add_argument("--token-file", type=Path, metavar="FILE", help="file with the token (default: a new one)")
    token.add_argument("--no-token", action="store_true", help="show everything to everyone on this machine")
    return parser
