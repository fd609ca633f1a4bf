"""Code written for slime or Relax finds our sample while it is loaded, and only then."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from relax_engine.types import Sample, SampleStatus
from relax_engine.utils.foreign import foreign_modules
from relax_engine.utils.hooks import load_function


@pytest.mark.parametrize("package", ["slime", "relax"])
def test_user_code_loads_unmodified(tmp_path: Path, package: str) -> None:
    file = tmp_path / "reward.py"
    file.write_text(
        f"import {package}.utils.types as types\n"
        f"from {package}.utils.types import Sample\n\n"
        "async def reward_func(args, sample: Sample, **kwargs):\n"
        "    done = sample.status == Sample.Status.COMPLETED and types.Sample is Sample\n"
        "    return sample.get_reward_value(args) + done\n"
    )
    function = load_function(f"{file}:reward_func")
    assert function.__globals__["Sample"] is Sample
    assert not any(name.partition(".")[0] == package for name in sys.modules)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{package}.utils.types")


def test_the_rest_of_the_package_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "rollout.py"
    file.write_text("from slime.rollout.sglang_rollout import GenerateState\n\ndef f():\n    pass\n")
    with pytest.raises(ModuleNotFoundError, match="slime"):
        load_function(f"{file}:f")


def test_an_installed_package_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "slime" / "utils"
    folder.mkdir(parents=True)
    for place in (folder, folder.parent):
        (place / "__init__.py").write_text("")
    (folder / "types.py").write_text("Sample = 'theirs'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with foreign_modules():
        assert importlib.import_module("slime.utils.types").Sample == "theirs"
    for name in ("slime", "slime.utils", "slime.utils.types"):
        monkeypatch.delitem(sys.modules, name)


def test_names_of_the_peers_sample() -> None:
    class Args:
        reward_key = "score"

    sample = Sample(reward={"score": 0.5, "acc": 1.0}, status=Sample.Status.TRUNCATED)
    assert Sample.Status is SampleStatus
    assert sample.get_reward_value(Args()) == sample.get_reward_value("score") == 0.5
    assert "Status" not in sample.to_dict()
