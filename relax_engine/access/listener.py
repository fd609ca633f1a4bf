"""Where and how the roles' APIs listen, in the words of Ray Serve."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from relax_engine.config.flat import FlatView


def http_options(args: FlatView, port: int) -> dict[str, Any]:
    """Serve's HTTP options: host and port, and certificate and key for HTTPS."""
    options: dict[str, Any] = {"host": args.api_host, "port": port}
    if args.api_ssl_certfile is not None:
        options |= {"ssl_certfile": args.api_ssl_certfile, "ssl_keyfile": args.api_ssl_keyfile}
    return options


def base_url(options: Mapping[str, Any]) -> str:
    """The URL of what listens with `options`."""
    host = f"[{options['host']}]" if ":" in options["host"] else options["host"]
    return f"{'https' if 'ssl_certfile' in options else 'http'}://{host}:{options['port']}"


def trusting(certificate: str | None) -> ssl.SSLContext | bool:
    """What a client of the run's own APIs checks their certificate with.

    It is that very certificate, whichever names it holds: the run reaches itself by addresses.
    """
    if certificate is None:
        return True
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
