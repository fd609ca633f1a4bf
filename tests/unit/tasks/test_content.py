"""What makes a task run again: bytes, the store, the code of hooks; not paths."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tasks.content import config_key, directory_key, file_key, source_digest


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAX_ARTIFACTS", str(tmp_path / "artifacts"))


def test_a_file_is_keyed_by_its_bytes(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "elsewhere.parquet"
    a.write_text("one")
    b.write_text("one")
    assert file_key(str(a)) == file_key(str(b))
    before = file_key(str(a))
    a.write_text("two")
    assert file_key(str(a)) != before


def test_a_new_store_changes_every_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    before = file_key(str(path))
    assert file_key(str(path)) == before
    monkeypatch.setenv("RELAX_ARTIFACTS", str(tmp_path / "another"))
    assert file_key(str(path)) != before


def test_a_directory_is_keyed_by_names_and_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "sub").mkdir(parents=True)
    (first / "sub" / "x").write_text("1")
    (first / "y").write_text("2")
    shutil.copytree(first, second)
    assert directory_key(str(first)) == directory_key(str(second))
    (second / "y").rename(second / "z")
    assert directory_key(str(first)) != directory_key(str(second))


@pytest.mark.parametrize("section", ["", "reward:\n  "])
def test_a_configuration_is_keyed_by_the_code_of_its_hooks(tmp_path: Path, section: str) -> None:
    hook = tmp_path / "my_reward.py"
    hook.write_text("def reward_func(sample): return 1.0\n")
    config = tmp_path / "run.yaml"
    config.write_text(f"{section}custom_rm_path: {hook}:reward_func\n")
    before = config_key(str(config))
    hook.write_text("def reward_func(sample): return 0.0\n")
    assert config_key(str(config)) != before


def test_a_hook_named_by_module_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hooks_of_mine.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = tmp_path / "run.yaml"
    config.write_text("custom_rm_path: hooks_of_mine.reward\n")
    before = config_key(str(config))
    (tmp_path / "hooks_of_mine.py").write_text("X = 2\n")
    assert config_key(str(config)) != before


def test_a_hook_that_does_not_exist_is_left_to_the_doctor(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("custom_rm_path: no_such_package.module.reward\n")
    assert len(config_key(str(config))) == 64


def test_the_source_digest_is_stable() -> None:
    assert source_digest() == source_digest()
    assert len(source_digest()) == 16
