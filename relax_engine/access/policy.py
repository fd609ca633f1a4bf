"""The access policy of a run: its bearer token, the key of its engines, and how large a request may be.

What lives here: making the policy, and handing it to the process that serves or calls. What does not: checking
requests (`guard.py`), and where the token is written (`token_file.py`).

Credentials reach processes inside the pickled context of a role, never on a command line, where every user of a
machine could read them.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass

from pydantic import SecretStr

from relax_engine.config.flat import FlatView

ENGINE_KEY_VARIABLE = "RELAX_ENGINE_API_KEY"
"""Key of the engines, where it must be the same for engines that somebody else starts."""

_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """What a request to the run's APIs needs. `None` stands for an API that is open to everyone who can reach it."""

    api_token: SecretStr | None
    engine_key: SecretStr | None
    max_body_bytes: int


_installed: AccessPolicy | None = None


def new_policy(args: FlatView) -> AccessPolicy:
    """A policy with a token of its own; the engines' key is `--sglang-api-key` or $RELAX_ENGINE_API_KEY where given."""
    given = args.sglang_args.get("api_key") or os.environ.get(ENGINE_KEY_VARIABLE)
    return AccessPolicy(
        api_token=_random() if args.api_auth else None,
        engine_key=SecretStr(str(given)) if given else _random() if args.api_auth else None,
        max_body_bytes=args.api_max_body_bytes,
    )


def install(policy: AccessPolicy) -> None:
    """Make `policy` the one of this process."""
    global _installed
    _installed = policy


def installed() -> AccessPolicy:
    """The policy of this process.

    Raises:
        RuntimeError: there is none, so that an API without a policy serves nobody.
    """
    if _installed is None:
        raise RuntimeError("no access policy is installed in this process; call relax_engine.access.policy.install")
    return _installed


def engine_key() -> SecretStr | None:
    """The key that this process sends to engines; None where no policy is installed or the engines are open."""
    return None if _installed is None else _installed.engine_key


def _random() -> SecretStr:
    return SecretStr(secrets.token_urlsafe(_TOKEN_BYTES))
