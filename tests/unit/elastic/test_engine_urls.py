"""Engine URLs that callers may name, and those that would have the rollout reach what it must not."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_engine.config import RunConfig
from relax_engine.elastic.urls import LOOPBACK, EngineUrlError, allowed_networks, check_engine_url
from relax_engine.errors import ConfigError

ANYWHERE = ("0.0.0.0/0", "::/0")


@pytest.mark.parametrize(
    ("url", "networks"),
    [
        ("http://127.0.0.1:15000", LOOPBACK),
        ("http://[::1]:15000", LOOPBACK),
        ("http://localhost:15000", LOOPBACK),
        ("https://10.1.2.3/engines/a", ("10.0.0.0/8",)),
        ("http://10.1.2.3:1", ("10.1.2.3",)),
        ("http://[::ffff:10.1.2.3]:1", ("10.1.2.3/32",)),
        ("http://169.254.169.254", ("169.254.169.254",)),
        ("http://8.8.8.8", ANYWHERE),
    ],
)
def test_allowed(url: str, networks: tuple[str, ...]) -> None:
    check_engine_url(url, networks)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "it is empty"),
        ("ftp://127.0.0.1", "the scheme is 'ftp'"),
        ("file:///etc/passwd", "the scheme is 'file'"),
        ("127.0.0.1:15000", "the scheme is ''"),
        ("http://user:pass@127.0.0.1", "user or password"),
        ("http://127.0.0.1@10.0.0.1", "user or password"),
        ("http://127.0.0.1/#@10.0.0.1", "fragment"),
        ("http://127.0.0.1/?next=x", "query"),
        ("http://127.0.0.1?", "query"),
        ("http://127.0.0.1\\@10.0.0.1", "backslashes"),
        ("http://127.0.0.1 :80", "spaces"),
        ("http://127.0.0.1\r\nHost: x", "control"),
        ("http://ⓛocalhost", "non-ASCII"),
        ("http://:80", "no host"),
        ("http://127.0.0.1:0", "port 0"),
        ("http://127.0.0.1:65536", "ort"),
        ("http://[::1", "IPv6"),
        ("http://2130706433", "unusual spelling"),
        ("http://0177.0.0.1", "unusual spelling"),
        ("http://0x7f000001", "unusual spelling"),
        ("http://127.1", "unusual spelling"),
        ("http://127.0.0.1.", "unusual spelling"),
        ("http://[fe80::1%25eth0]", "unusual spelling"),
        ("http://10.0.0.1", "none of the allowed networks (127.0.0.0/8, ::1/128)"),
        ("http://[::ffff:10.0.0.1]", "none of the allowed networks"),
        ("http://no-such-host.invalid", "cannot be resolved"),
    ],
)
def test_refused(url: str, reason: str) -> None:
    with pytest.raises(EngineUrlError) as error:
        check_engine_url(url, LOOPBACK)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254", "[::ffff:169.254.169.254]", "[fe80::1]", "[fd00:ec2::254]", "100.100.100.200",
        "168.63.129.16", "0.0.0.0", "[::]", "224.0.0.1", "[ff02::1]",
    ],
)  # fmt: skip
def test_a_wide_network_does_not_open_metadata_services(host: str) -> None:
    with pytest.raises(EngineUrlError):
        check_engine_url(f"http://{host}:80", (*ANYWHERE, *LOOPBACK))


def test_every_address_of_a_name_must_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int, **_: object) -> list[object]:
        assert (host, port) == ("two-faced.example", 443)
        return [(2, 1, 6, "", ("127.0.0.1", port)), (2, 1, 6, "", ("169.254.169.254", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(EngineUrlError, match=r"two-faced.example is 169.254.169.254, and .* none of the allowed"):
        check_engine_url("https://two-faced.example", LOOPBACK)


def test_the_message_shows_no_password() -> None:
    with pytest.raises(EngineUrlError) as error:
        check_engine_url("http://user:hunter2@127.0.0.1", LOOPBACK)
    assert "hunter2" not in str(error.value)
    assert "127.0.0.1" in str(error.value)


@given(st.ip_addresses(v=4), st.ip_addresses(v=4), st.integers(0, 32))
def test_an_address_is_allowed_exactly_where_its_leading_bits_agree(address, network, bits) -> None:
    same = int(address) >> (32 - bits) == int(network) >> (32 - bits)
    ordinary = not (address.is_multicast or address.is_unspecified or address.is_link_local)
    special = str(address) in ("100.100.100.200", "168.63.129.16", "192.0.0.192")
    try:
        check_engine_url(f"http://{address}:80", (f"{network}/{bits}",))
        allowed = True
    except EngineUrlError:
        allowed = False
    if ordinary and not special:
        assert allowed == same
    assert same or not allowed


def test_configured_networks_replace_the_default() -> None:
    config = RunConfig.from_flat(engine_url_networks="10.0.0.0/8")
    assert allowed_networks(config.flat) == ("10.0.0.0/8",)
    assert allowed_networks(RunConfig().flat) == LOOPBACK  # no cluster is connected here


def test_a_network_that_is_none_is_refused_with_the_flag() -> None:
    with pytest.raises(ConfigError, match=r"engine.url.networks.*10.0.0.1/8"):
        RunConfig.from_flat(engine_url_networks=["10.0.0.1/8"])
