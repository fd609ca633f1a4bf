"""Who may call the run's HTTP APIs, and whom the run may call for them."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator

from relax_engine.config.sections.base import Section, StrList, flag, group


def _networks(values: list[str]) -> list[str]:
    for value in values:
        try:
            ipaddress.ip_network(value)
        except ValueError as error:
            raise ValueError(f"{error}; write networks as 10.1.0.0/16 or fd00:1::/64") from None
    return values


class Access(Section):
    """The control plane's HTTP APIs."""

    api_auth: bool = True
    """Answer only requests that bring the run's bearer token, which is in `api_token` of `--run-dir` while the run goes
    on. `/<role>/health` is open."""

    api_host: str = "127.0.0.1"
    """Address that the roles' APIs listen on, on every node; `0.0.0.0` for all interfaces."""

    api_port: int = flag(8000, ge=1, le=65535)
    """Port of the roles' APIs; another one, which the log names, where it is taken."""

    api_ssl_certfile: str | None = None
    """Certificate (PEM) with which the roles' APIs speak HTTPS; on every node at the same path."""

    api_ssl_keyfile: str | None = None
    """Private key (PEM) of `--api-ssl-certfile`."""

    user_code_paths: StrList = group(list)
    """Files and directories that functions named by flags may be loaded from, besides this package; anything else is an
    error before the run starts. Default: wherever the flags say."""

    api_max_body_bytes: int = flag(1024 * 1024, ge=1024, unit="bytes")
    """Largest body of a request to a role's API; a larger one is answered with 413."""

    engine_url_networks: Annotated[StrList, AfterValidator(_networks)] = group(list)
    """Networks (CIDR) whose engines callers may register by URL; each address of a URL's host must lie in one. Default:
    loopback and the nodes of the Ray cluster. The ranges of cloud metadata services must be named by themselves."""
