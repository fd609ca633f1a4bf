"""How the roles' APIs listen."""

from __future__ import annotations

from relax_engine.access.listener import base_url, http_options
from relax_engine.config import RunConfig


def test_loopback_unless_told_otherwise() -> None:
    options = http_options(RunConfig().flat, 8001)
    assert (options, base_url(options)) == ({"host": "127.0.0.1", "port": 8001}, "http://127.0.0.1:8001")


def test_certificate_and_key_make_it_https() -> None:
    config = RunConfig.from_flat(api_host="::", api_ssl_certfile="c.pem", api_ssl_keyfile="k.pem")
    options = http_options(config.flat, 8000)
    assert options == {"host": "::", "port": 8000, "ssl_certfile": "c.pem", "ssl_keyfile": "k.pem"}
    assert base_url(options) == "https://[::]:8000"
