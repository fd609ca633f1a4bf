"""Rules about who can call the run's APIs, and whom the run tells about itself."""

from __future__ import annotations

import ipaddress
import os

from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig
from relax_engine.errors import ConfigError


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


@rule
def own_requests_need_no_key(config: RunConfig, report: Reporter) -> Findings:
    """Engines are open where a user's function addresses them."""
    from relax_engine.access.policy import ENGINE_KEY_VARIABLE, own_requests

    named = own_requests(config.flat)
    if named and config.access.api_auth and not os.environ.get(ENGINE_KEY_VARIABLE):
        yield report.note(
            " ".join(named),
            "engines ask for no key, because your function may send requests to them",
            f"set ${ENGINE_KEY_VARIABLE} and send args.sglang_api_key as the bearer token",
        )


@rule
def notifications_have_services(config: RunConfig, report: Reporter) -> Findings:
    """Apprise knows every URL of --notify-urls."""
    if not config.logging.notify_urls:
        return
    from relax_engine.observe.notify import parse_target

    for url in config.logging.notify_urls:
        try:
            parse_target(url)
        except ConfigError as error:
            yield report.error("notify_urls", str(error), "correct the URL or leave it out")


@rule
def watched_metrics_can_get_worse(config: RunConfig, report: Reporter) -> Findings:
    """--notify-regressions names metrics of which it is known what is better, and somebody is told."""
    if not config.logging.notify_regressions:
        return
    from relax_engine.observe.regressions import Watched

    for name in config.logging.notify_regressions:
        try:
            Watched(name)
        except ConfigError as error:
            yield report.error("notify_regressions", str(error), "leave it out, or watch another one")
    if not config.logging.notify_urls:
        yield report.warning("notify_regressions", "nobody is told", "give --notify-urls, or leave it out")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
