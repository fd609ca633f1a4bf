"""Functions named by path: modules, files, and what a bad path says."""

from __future__ import annotations

from pathlib import Path

import pytest

from relax_engine.utils.hooks import absolute_reference, declare_code_paths, load_function


def test_paths_of_modules_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_function("os.path.join") is load_function("os.path:join")
    file = tmp_path / "hook_in_file.py"
    file.write_text("def score(args, sample):\n    return 0.25\n")
    assert load_function(f"{file}:score")(None, None) == 0.25
    monkeypatch.chdir(tmp_path)
    assert absolute_reference("hook_in_file.py:score") == f"{file}:score"
    assert absolute_reference("package.module:score") == "package.module:score"
    assert load_function("hook_in_file.score")(None, None) == 0.25


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("score", ValueError, "write package.module.function"),
        ("no_such_package.score", ImportError, "there is no module 'no_such_package'"),
        ("os.path.no_such_function", ValueError, "'no_such_function' does not exist in 'os.path'"),
        ("os.path.sep", ValueError, "'sep' is not callable"),
        ("/nowhere/hook.py:score", ImportError, "/nowhere/hook.py does not exist"),
    ],
)
def test_bad_paths_are_named(path: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_function(path)


def test_a_missing_import_inside_the_users_module_is_not_hidden(tmp_path: Path) -> None:
    file = tmp_path / "hook_with_bad_import.py"
    file.write_text("import no_such_dependency\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        load_function(f"{file}:score")


async def test_a_method_that_awaits_is_a_coroutine_without_its_async(tmp_path: Path) -> None:
    file = tmp_path / "lax.py"
    file.write_text(
        "async def one():\n    return 1\n\n"
        "class Env:\n    def step(self):\n        return await one() + 1\n\n"
        "def outer():\n    async def inner():\n        return await one()\n    return inner\n\n"
        "def step():\n    return Env().step()\n"
    )
    assert await load_function(f"{file}:step")() == 2
    assert await load_function(f"{file}:outer")()() == 1


def test_only_declared_code_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a file or package elsewhere runs; a link into a declared directory does not open it."""
    ran = tmp_path / "ran"
    for place in ("declared", "elsewhere/package"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "scores.py").write_text(f"open({str(ran)!r}, 'a').close()\ndef one(*_):\n    return 1\n")
    (tmp_path / "elsewhere" / "package" / "__init__.py").write_text(f"open({str(ran)!r}, 'a').close()\n")
    link = tmp_path / "declared" / "link.py"
    link.symlink_to(tmp_path / "elsewhere" / "package" / "scores.py")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    monkeypatch.setenv("RELAX_USER_CODE_PATHS", "restored by the fixture")
    declare_code_paths([str(tmp_path / "declared")])
    outside = [f"{tmp_path}/elsewhere/package/scores.py:one", "package.scores.one", f"{link}:one", "json:loads"]
    for path in outside:
        load_function.cache_clear()
        with pytest.raises(ImportError, match="is in none of --user-code-paths"):
            load_function(path)
    assert not ran.exists()
    assert load_function(f"{tmp_path}/declared/scores.py:one")() == 1
    assert load_function("relax_engine.rollout.filters.check_reward_nonzero_std")
    declare_code_paths([])
    assert load_function("package.scores.one")() == 1
