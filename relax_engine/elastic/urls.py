"""Which engine URLs a caller of the API may have the rollout connect to.

What lives here: the check of one URL against the networks that are allowed, and which networks those are by default.
What does not: connecting. A name is resolved when it is checked; that it still means the same address later is up to
whoever serves the name, so a network that is not trusted does not belong on the list.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from relax_engine.config.flat import FlatView
from relax_engine.errors import RelaxError
from relax_engine.utils.redact import redact

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOPBACK = ("127.0.0.0/8", "::1/128")

_METADATA: tuple[Network, ...] = tuple(
    ipaddress.ip_network(network)
    for network in (
        "169.254.0.0/16",  # link-local, where most clouds answer for their metadata
        "fe80::/10",
        "fd00:ec2::254/128",  # AWS
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure
        "192.0.0.192/32",  # Oracle
    )
)
_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+))*\.?", re.IGNORECASE)
_ALLOWED_CHARACTERS = re.compile(r"[!-\[\]-~]+")
"""Printable ASCII without the backslash, which some parsers take for a slash."""


class EngineUrlError(RelaxError, ValueError):
    """An engine URL that the rollout must not connect to."""


def check_engine_url(url: str, networks: Sequence[str]) -> None:
    """Return if every address that `url` means lies in one of `networks` (CIDR, or single addresses).

    A network that holds addresses of cloud metadata services or of the local link allows those only where it holds
    nothing else: 0.0.0.0/0 allows no 169.254.169.254, 169.254.0.0/16 does.

    Raises:
        EngineUrlError: it is no plain http(s) URL of a host, or an address is not allowed; names url, reason, way out.
    """
    parts = _split(url)
    allowed = [ipaddress.ip_network(network, strict=False) for network in networks]
    assert parts.hostname is not None
    for address in _addresses(url, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)):
        reason = _objection(address, allowed)
        if reason is not None:
            named = "" if str(address) == parts.hostname else f"{parts.hostname} is {address}, and "
            raise _refused(
                url,
                f"{named}{reason}",
                "use an engine in an allowed network, or start the run with that network in --engine-url-networks",
            )


def allowed_networks(args: FlatView) -> tuple[str, ...]:
    """`--engine-url-networks` where given, else loopback and each node of the connected Ray cluster."""
    if args.engine_url_networks:
        return tuple(args.engine_url_networks)
    import ray

    nodes = ray.nodes() if ray.is_initialized() else []
    return (*LOOPBACK, *dict.fromkeys(node["NodeManagerAddress"] for node in nodes if node["Alive"]))


def _split(url: str) -> SplitResult:
    """The parts of a URL that all parsers would take apart in the same way."""
    write = "write http://HOST:PORT"
    if not _ALLOWED_CHARACTERS.fullmatch(url):
        raise _refused(url, "it is empty or has spaces, control, non-ASCII characters or backslashes", write)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _refused(url, str(error), write) from error
    if parts.scheme not in ("http", "https"):
        raise _refused(url, f"the scheme is {parts.scheme!r}, not http or https", write)
    if "@" in parts.netloc:
        raise _refused(url, "it has a user or password", "register the engine without; its key is --engine-api-key")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise _refused(url, "it has a query or a fragment", write)
    if not parts.hostname or port == 0:
        raise _refused(url, "it has no host, or port 0", write)
    return parts


def _addresses(url: str, host: str, port: int) -> list[Address]:
    unusual = _refused(
        url, f"{host} is an address in an unusual spelling", "write IPv4 as four decimal numbers, IPv6 without a zone"
    )
    if "%" in host:
        raise unusual
    try:
        return [_plain(ipaddress.ip_address(host))]
    except ValueError:
        if _NUMERIC.fullmatch(host) or ":" in host:
            raise unusual from None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise _refused(url, f"{host} cannot be resolved: {error}", "check the name, or give the address") from error
    return [_plain(ipaddress.ip_address(str(entry[4][0]).partition("%")[0])) for entry in found]


def _plain(address: Address) -> Address:
    """An IPv4 address for its IPv6-mapped form, which connects to the same host."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _objection(address: Address, allowed: Sequence[Network]) -> str | None:
    """Why the address is refused, None where it is not."""
    if address.is_unspecified or address.is_multicast:
        return f"{address} is not the address of a host"
    holding = [network for network in allowed if address in network]
    if not holding:
        listed = ", ".join(map(str, allowed)) or "none"
        return f"{address} is in none of the allowed networks ({listed})"
    for special in _METADATA:
        if address in special and not any(_within(network, special) for network in holding):
            return f"{address} may be a cloud's metadata service or on the local link"
    return None


def _within(network: Network, other: Network) -> bool:
    if isinstance(network, ipaddress.IPv4Network) and isinstance(other, ipaddress.IPv4Network):
        return network.subnet_of(other)
    if isinstance(network, ipaddress.IPv6Network) and isinstance(other, ipaddress.IPv6Network):
        return network.subnet_of(other)
    return False


def _refused(url: str, reason: str, way_out: str) -> EngineUrlError:
    return EngineUrlError(f"engine URL {redact(url)!r} is refused: {reason}; {way_out}")
