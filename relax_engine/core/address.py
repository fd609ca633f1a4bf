"""Where the roles' APIs of this run answer, as its own processes reach them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ray.serve.context import _get_global_client

from relax_engine.access.listener import base_url

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class ApiAddress:
    """`base_url` is in front of every role's name, `certificate` theirs with HTTPS."""

    base_url: str
    certificate: str | None


def api_address() -> ApiAddress:
    """The address on this node. Serve must run."""
    client: Any = _get_global_client()
    listening = client.http_config.model_dump(include={"host", "port", "ssl_certfile"}, exclude_none=True)
    listening["host"] = _ANY.get(listening["host"], listening["host"])
    return ApiAddress(base_url(listening), listening.get("ssl_certfile"))
