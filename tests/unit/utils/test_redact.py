"""Credentials in every shape that the project handles, and texts that only look like some."""

from __future__ import annotations

import time

import pytest

from relax_engine.utils.redact import is_secret_name, redact, redact_value

SECRETS = [
    ("s3://AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI@bucket/key", "s3://***@bucket/key"),
    ("http://user:p@ss@host:1/x failed", "http://***@host:1/x failed"),
    ("https://h/x?a=1&access_token=abc&b=2", "https://h/x?a=1&access_token=***&b=2"),
    ("https://h/x?X-Amz-Signature=deadbeef&X-Amz-Date=1", "https://h/x?X-Amz-Signature=***&X-Amz-Date=1"),
    ("https://maps.example/api?key=abc", "https://maps.example/api?key=***"),
    ("slack://TokenA/TokenB/TokenC/Channel sent", "slack://*** sent"),
    ("tgram://123456789:abcdefg_hijklmnop/12315544", "tgram://***"),
    ("mailtos://me:secret@gmail.com?to=you@x.org", "mailtos://***"),
    ("json://127.0.0.1:99/hook?freq=3", "json://***"),
    ("https://hooks.slack.com/services/T0/B0/XXX?a=1", "https://hooks.slack.com/services/***?a=1"),
    ("https://discord.com/api/webhooks/1234/abcd-efg", "https://discord.com/api/webhooks/***"),
    ("Authorization: Bearer 0123456789abcdef", "Authorization: *** ***"),
    ("sent bearer abcdefgh.ijkl-mno= to it", "sent bearer *** to it"),
    ("Basic dXNlcjpwYXNz", "Basic ***"),
    ("key AKIAIOSFODNN7EXAMPLE is wrong", "key *** is wrong"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "AWS_SECRET_ACCESS_KEY=***"),
    ("{'aws_session_token': 'FwoGZXIvYXdzE', 'region': 'eu'}", "{'aws_session_token': '***', 'region': 'eu'}"),
    ('{"apiKey": "abc", "n": 1}', '{"apiKey": "***", "n": 1}'),
    ("HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz", "HF_TOKEN=***"),
    ("401 for hf_abcdefghijklmnopqrstuvwxyz.", "401 for ***."),
    ("relax train --wandb-key 0123abcd --seed 1", "relax train --wandb-key *** --seed 1"),
    ("relax train --hf-token 'two words' --seed 1", "relax train --hf-token '***' --seed 1"),
    ('password: "a, b; c", seed: 1', 'password: "***", seed: 1'),
    ("api_key='never closed", "api_key='***"),
    ('{"detail": "busy with token=abcdef"}', '{"detail": "busy with token=***"}'),
    ("refused: token=abcdef, again: a=b=secret=c", "refused: token=***, again: a=b=secret=***"),
    (
        "--extra '--hf-token abcdef' --note \"it's --hf-token=abc\"",
        "--extra '--hf-token ***' --note \"it's --hf-token=***\"",
    ),
    ("--sglang-api-key=s3cret", "--sglang-api-key=***"),
    ("password: hunter2", "password: ***"),
    ("token ghp_abcdefghijklmnopqrstuvwx", "token ***"),
    ("sk-proj-abcdefghijklmnopqrst", "***"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- after", "*** after"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2ln", "***"),
]

HARMLESS = [
    "training step 3/10: loss 0.1234, grad norm 1.000, 2.50 s",
    "engine http://10.0.0.3:15000 gets no further requests: http://10.0.0.3:15000/generate did not answer within 5 s",
    "--max-tokens-per-gpu 16384 --eos-token </s> --seed 1",
    "pad_token: <pad>",
    "stop_token=</s> tokens=12 token_usage=0.5",
    "token: 512",
    "s3://bucket/path?versionId=abc",
    "file:///tmp/store, memory://x, ray://head:10001",
    "reward_key=score input_key: prompt label_key answer",
    "config_digest 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "api_key: None, --wandb-key (not set)",
    "write package.module:function or path/file.py:function",
    "send args.sglang_api_key as the bearer token; a bearer token is needed",
]


@pytest.mark.parametrize(("text", "shown"), SECRETS)
def test_hides_credentials(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown  # handlers may see a text twice


@pytest.mark.parametrize("text", HARMLESS)
def test_leaves_the_rest(text: str) -> None:
    assert redact(text) == text


def test_values_by_name_and_by_look() -> None:
    given = {
        "logging": {"notify_urls": ["slack://a/b/c", "json://h"], "run_dir": "runs/x"},
        "rollout": {"sglang_args": {"api_key": "s3cret", "port": 1}, "pad_token": "<pad>"},
        "url": "https://u:p@h/x",
        "empty_password": "",
        "steps": (1, 2.5, None, True),
    }
    assert redact_value(given) == {
        "logging": {"notify_urls": ["***", "***"], "run_dir": "runs/x"},
        "rollout": {"sglang_args": {"api_key": "***", "port": 1}, "pad_token": "<pad>"},
        "url": "https://***@h/x",
        "empty_password": "",
        "steps": [1, 2.5, None, True],
    }


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "hfToken", "X-Auth-Token", "--sglang-api-key", "db.password"])
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["max_tokens_per_gpu", "eos_token", "token_usage", "tokenizer", "key", "secretary"])
def test_other_names(name: str) -> None:
    assert not is_secret_name(name)


PIECES = ["a=", "a-", "-", "--a", "--a ", "x: ", "token=", 'a="', '"', "a", "a ", "://", "a=b: "]


@pytest.mark.parametrize("piece", PIECES)
def test_long_texts_take_linear_time(piece: str) -> None:
    started = time.process_time()
    redact(piece * (200_000 // len(piece)))
    assert time.process_time() - started < 2.0
