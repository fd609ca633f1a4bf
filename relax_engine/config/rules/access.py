"""Rules about who can call the run's APIs."""

from __future__ import annotations

import ipaddress

from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig


@rule
def certificates_come_with_keys(config: RunConfig, report: Reporter) -> Findings:
    """HTTPS needs both files."""
    access = config.access
    if (access.api_ssl_certfile is None) != (access.api_ssl_keyfile is None):
        yield report.error(
            "api_ssl_certfile api_ssl_keyfile", "HTTPS needs certificate and key", "give both or neither"
        )


@rule
def apis_beyond_this_machine_are_protected(config: RunConfig, report: Reporter) -> Findings:
    """What other machines can reach needs a token, and a connection that nobody reads it from."""
    access = config.access
    if _is_loopback(access.api_host):
        return
    if not access.api_auth:
        yield report.error(
            "api_host api_auth",
            "whoever reaches this machine could stop and rescale the run",
            "leave out --no-api-auth",
        )
    elif access.api_ssl_certfile is None:
        yield report.warning(
            "api_host api_ssl_certfile",
            "the token crosses the network in the clear",
            "--api-ssl-certfile and --api-ssl-keyfile, or a proxy that speaks HTTPS",
        )


@rule
def command_lines_are_public(config: RunConfig, report: Reporter) -> Findings:
    """Other users of a machine can read its command lines."""
    if config.rollout.sglang_args.get("api_key"):
        yield report.warning(
            "sglang_args", "the engines' key is in a command line or a file", "set $RELAX_ENGINE_API_KEY instead"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
