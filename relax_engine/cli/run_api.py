"""How commands reach the API of a run: their flags, and a client for them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from relax_engine.access.address_file import read_address
from relax_engine.access.token_file import read_token

if TYPE_CHECKING:
    from relax_engine.elastic.autoscaler.rollout_api import RolloutApi

_DEFAULT = "http://127.0.0.1:8000"


def add_run_api(parser: argparse.ArgumentParser, url_flag: str = "--url") -> None:
    """Add the flags; `url_flag` names the one of the address."""
    parser.add_argument(
        url_flag, metavar="URL", help=f"its API with the role's name (default: in --run-dir, or {_DEFAULT}/<role>)"
    )
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="directory of the run: its address and its token")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file with the token, instead")
    parser.add_argument("--ca-file", metavar="FILE", help="certificate that the API is checked with (HTTPS)")


def run_api(options: argparse.Namespace, role: str, url: str | None, *, timeout_s: float) -> RolloutApi:
    """A client of the API of `role`, at `url` or where the run directory says.

    Raises:
        TokenFileError: the run has no token there.
    """
    from relax_engine.access.listener import trusting
    from relax_engine.elastic.autoscaler.rollout_api import RolloutApi

    place = options.token_file or options.run_dir
    token = None if place is None else read_token(place)
    base_url = (options.run_dir and read_address(options.run_dir)) or _DEFAULT
    return RolloutApi(url or f"{base_url}/{role}", token, timeout_s=timeout_s, tls=trusting(options.ca_file))
