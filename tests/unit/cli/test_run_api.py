"""Which address and which token a command takes."""

import argparse
from pathlib import Path

import pytest

from relax_engine.access.address_file import read_address, remove_address, write_address
from relax_engine.access.token_file import TOKEN_FILE, TokenFileError
from relax_engine.cli.run_api import add_run_api, run_api


def options(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_run_api(parser)
    return parser.parse_args(argv)


def url_of(chosen: argparse.Namespace, role: str = "rollout") -> str:
    return run_api(chosen, role, chosen.url, timeout_s=1.0).url


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / TOKEN_FILE).write_text("secret\n")
    write_address(tmp_path, "https://127.0.0.1:8017")
    return tmp_path


def test_the_run_directory_says_where_its_roles_answer(run_dir: Path) -> None:
    assert url_of(options("--run-dir", str(run_dir))) == "https://127.0.0.1:8017/rollout"
    assert url_of(options("--run-dir", str(run_dir)), "genrm") == "https://127.0.0.1:8017/genrm"


def test_an_address_of_the_command_line_wins(run_dir: Path) -> None:
    assert url_of(options("--run-dir", str(run_dir), "--url", "http://far:1/rollout")) == "http://far:1/rollout"


def test_without_a_run_directory_it_is_the_default_port() -> None:
    assert url_of(options()) == "http://127.0.0.1:8000/rollout"


def test_a_run_that_has_ended_has_no_address_and_no_token(run_dir: Path) -> None:
    remove_address(run_dir)
    remove_address(run_dir)
    (run_dir / TOKEN_FILE).unlink()
    assert read_address(run_dir) is None
    with pytest.raises(TokenFileError, match="while a run goes on"):
        url_of(options("--run-dir", str(run_dir)))
