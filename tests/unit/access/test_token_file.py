"""The token on disk: who can read it, and for how long it is there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from pydantic import SecretStr

from relax_engine.access.token_file import TokenFileError, read_token, token_file


def test_only_the_owner_can_read_it_and_only_meanwhile(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        with token_file(tmp_path, SecretStr("abc")):
            path = tmp_path / "api_token"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert read_token(tmp_path) == read_token(path) == SecretStr("abc")
    finally:
        os.umask(previous)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TokenFileError, match="while a run goes on"):
        read_token(tmp_path)


def test_a_file_or_link_that_was_left_there_does_not_get_the_token(tmp_path: Path) -> None:
    readable = tmp_path / "readable"
    readable.write_text("old")
    (tmp_path / "api_token").symlink_to(readable)
    with token_file(tmp_path, SecretStr("abc")):
        assert readable.read_text() == "old"
        assert not (tmp_path / "api_token").is_symlink()


def test_an_open_run_has_none(tmp_path: Path) -> None:
    with token_file(tmp_path, None):
        assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_no_token(tmp_path: Path) -> None:
    (tmp_path / "api_token").write_text("\n")
    with pytest.raises(TokenFileError, match="is empty"):
        read_token(tmp_path)
