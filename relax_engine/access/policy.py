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
_GENERATING = ("custom_generate_function_path", "rollout_function_path", "eval_function_path", "custom_prompt_path")


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """What a request to the run's APIs needs. `None` stands for an API that is open to everyone who can reach it."""

    api_token: SecretStr | None
    engine_key: SecretStr | None
    max_body_bytes: int


_installed: AccessPolicy | None = None


def new_policy(args: FlatView) -> AccessPolicy:
    """A policy with a token of its own.

    The engines' key is `--sglang-api-key` or $RELAX_ENGINE_API_KEY where given, and else of the run's own making,
    unless a user's function addresses engines itself (`own_requests`), which existing ones do without a key.
    """
    given = args.sglang_args.get("api_key") or os.environ.get(ENGINE_KEY_VARIABLE)
    closed = args.api_auth and not own_requests(args)
    return AccessPolicy(
        api_token=_random() if args.api_auth else None,
        engine_key=SecretStr(str(given)) if given else _random() if closed else None,
        max_body_bytes=args.api_max_body_bytes,
    )


def own_requests(args: FlatView) -> list[str]:
    """The flags that name functions of a user's which may send requests to engines themselves."""
    named = {name: getattr(args, name) for name in _GENERATING}
    return [name for name, path in named.items() if path and not path.startswith("relax_engine.")]


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


def revealed_engine_key() -> str | None:
    """`engine_key` as text, for a user's function that sends requests itself."""
    key = engine_key()
    return None if key is None else key.get_secret_value()


def _random() -> SecretStr:
    return SecretStr(secrets.token_urlsafe(_TOKEN_BYTES))
