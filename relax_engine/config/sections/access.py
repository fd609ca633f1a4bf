"""Who may call the run's HTTP APIs, and whom the run may call for them."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator

from relax_engine.config.sections.base import Section, StrList, group


def _networks(values: list[str]) -> list[str]:
    for value in values:
        try:
            ipaddress.ip_network(value)
        except ValueError as error:
            raise ValueError(f"{error}; write networks as 10.1.0.0/16 or fd00:1::/64") from None
    return values


class Access(Section):
    """The control plane's HTTP APIs."""

    engine_url_networks: Annotated[StrList, AfterValidator(_networks)] = group(list)
    """Networks (CIDR) whose engines callers may register by URL; each address of a URL's host must lie in one. Default:
    loopback and the nodes of the Ray cluster. The ranges of cloud metadata services must be named by themselves."""
