"""Credentials out of texts and values that are shown, logged or stored.

What lives here: what a credential looks like. What does not: who asks (log handlers, the written configuration,
error files, events).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OPEN_SCHEMES = _words(
    "http https ws wss ftp ftps sftp ssh git file local memory s3 s3a gs gcs az abfs abfss adl oss obs cos hdfs "
    "webhdfs viewfs hf dvc github zip tar ray redis rediss tcp udp unix ipc inproc grpc grpcs postgresql mysql sqlite "
    "docker oci env"
)
"""Schemes whose URLs hold credentials in known places only. Any other, as Apprise's, may hold them anywhere."""

_URL = re.compile(r"""(?<![a-z0-9+.-])([a-z0-9+.-]+)://([^\s"'<>]+)""", re.IGNORECASE)
_USERINFO = re.compile(r"^[^/?#]*@")
_WEBHOOK = re.compile(
    r"(hooks\.slack\.com/(?:services|workflows)/|discord(?:app)?\.com/api/webhooks/|api\.telegram\.org/(?:file/)?bot"
    r"|webhook\.office\.com/)[^?#]+",
    re.IGNORECASE,
)
_PARAMETER = re.compile(r"([?&;])([^=&;#]+)=([^&;#]*)")

_SECRET_NAMES = _words(
    "password passwd passphrase pwd secret secret_key api_key apikey access_key access_key_id private_key signing_key "
    "account_key wandb_key token credential credentials authorization cookie webhook webhook_url notify_urls"
)
_SECRET_PARAMETERS = frozenset(("key", "auth", "code", "sig", "signature", "x_amz_signature", "x_amz_credential"))
_TOKEN_WORDS = _words(
    "eos bos pad unk sep cls mask stop start end first last next special image video audio per response prompt new "
    "each think tool a the this every of unexpected invalid one same"
)
"""Words before `token` that make it one of a language model's."""

_ASSIGNED = re.compile(r"""(?<![\w.-])(?P<name>[\w.-]+)["']?\s*(?:=|:(?!//))\s*(?P<quote>["'])?""")
_ASSIGNED_VALUE = re.compile(r"""[^\s"',;&})\]]+""")
_FLAG = re.compile(r"""(?<![\w-])(?P<name>--[a-z][\w-]*)\s+(?P<quote>["'])?""")
_FLAG_VALUE = re.compile(r"""(?!--)[^\s"']+""")
_QUOTED_VALUE = {
    quote: re.compile(rf"[^\n]{{1,512}}?(?={quote}|$)", re.MULTILINE)  # up to the quote that closes it
    for quote in ("'", '"')
}
_PLAIN = re.compile(r"[-+]?[\d._]+(e[-+]?\d+)?|true|false|none|null|\(not|<.*", re.IGNORECASE)
"""Values that are no secrets, whatever their name."""

_SCHEME_WORD = re.compile(r"\b(Bearer|Basic)\s+(?!token\b)[A-Za-z0-9._~+/-]{6,}=*", re.IGNORECASE)
_SHAPES = re.compile(
    r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"  # AWS access key ids
    r"|\bhf_[A-Za-z0-9]{16,}\b|\bapi_org_[A-Za-z0-9]{16,}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}\b|\bgithub_pat_[A-Za-z0-9_]{20,}\b|\bglpat-[\w-]{16,}"
    r"|\bsk-[A-Za-z0-9_-]{20,}|\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\bAIza[\w-]{30,}"
    r"|\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*"  # JSON web tokens
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)


def is_secret_name(name: str) -> bool:
    """Whether a variable, field, header or flag of that name holds a credential (`WANDB_API_KEY`, `--hf-token`)."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).strip("-").lower()
    words = re.sub(r"[^a-z0-9]+", "_", words).strip("_")
    for secret in _SECRET_NAMES:
        if words == secret or words.endswith(f"_{secret}"):
            return secret != "token" or words.rpartition("_")[0].rpartition("_")[2] not in _TOKEN_WORDS
    return False


def redact(text: str) -> str:
    """`text` with `***` in the place of credentials.

    Hidden are users and passwords of URLs, their secret parameters, all of a notification URL, bearer and basic
    authorization, values of secret names (`name=value`, `name: value`, `--name value`), and texts that only
    credentials look like (AWS, Hugging Face, GitHub, Slack and OpenAI keys, web tokens, private keys).
    """
    text = _URL.sub(_redact_url, text)
    text = _SCHEME_WORD.sub(rf"\1 {HIDDEN}", text)
    text = _SHAPES.sub(HIDDEN, text)
    return _hide_named(_ASSIGNED, _ASSIGNED_VALUE, _hide_named(_FLAG, _FLAG_VALUE, text))


def redact_value(value: Any, name: str = "") -> Any:
    """A copy of a JSON-like value in which strings are redacted, and hidden whole under a secret name."""
    if isinstance(value, Mapping):
        return {key: redact_value(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_value(item, name) for item in value]
    if not isinstance(value, str):
        return value
    return HIDDEN if value and is_secret_name(name) else redact(value)


def _redact_url(match: re.Match[str]) -> str:
    scheme, rest = match[1], match[2]
    if scheme.lower().lstrip("0123456789+.-") not in _OPEN_SCHEMES:
        return f"{scheme}://{HIDDEN}"
    rest = _USERINFO.sub(f"{HIDDEN}@", rest)
    rest = _WEBHOOK.sub(rf"\1{HIDDEN}", rest)
    return f"{scheme}://{_PARAMETER.sub(_redact_parameter, rest)}"


def _redact_parameter(match: re.Match[str]) -> str:
    name = match[2]
    secret = is_secret_name(name) or re.sub(r"[^a-z]+", "_", name.lower()) in _SECRET_PARAMETERS
    return f"{match[1]}{name}={HIDDEN}" if secret and match[3] else match[0]


def _hide_named(pattern: re.Pattern[str], value_pattern: re.Pattern[str], text: str) -> str:
    """Hide the values of secret names; `pattern` ends where the value begins, which is quoted or `value_pattern`'s."""
    parts, kept, at = [], 0, 0
    while match := pattern.search(text, at):
        at = match.end()
        if not is_secret_name(match["name"]):
            continue
        value = _QUOTED_VALUE.get(match["quote"], value_pattern).match(text, at)
        if value and not _PLAIN.fullmatch(value[0]):
            parts += [text[kept:at], HIDDEN]
            kept = at = value.end()
    return "".join(parts) + text[kept:]
