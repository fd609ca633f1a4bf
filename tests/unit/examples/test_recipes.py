"""Every example's settings pass the doctor in both modes, and its folder has what its script needs."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path

import pytest

from examples.settings import MODES, ROOT, names, recipe
from relax_engine import RunConfig
from relax_engine.config.doctor import check


@pytest.mark.parametrize("name", names())
def test_settings_have_no_fault(name: str, tmp_path: Path) -> None:
    chosen = recipe(name)
    paths = importlib.import_module(f"examples.{name}.make_data").make_data(tmp_path)
    model = str(chosen.make_model(tmp_path / "model", chosen.start, 0))
    for mode in MODES:
        config = RunConfig.from_flat(
            **chosen.rl(mode, chosen.steps, 0),
            **dict.fromkeys(chosen.others, model),
            hf_checkpoint=model,
            prompt_data=[str(paths["train"])],
            save=str(tmp_path / "save"),
            save_interval=chosen.steps,
            run_dir=str(tmp_path / "run"),
        )
        assert [str(finding) for finding in check(config)] == []
        assert (config.mode == "fully_async") is (mode == "async")


@pytest.mark.parametrize("name", names())
def test_the_script_and_the_table_know_it(name: str) -> None:
    script = ROOT / "examples" / name / f"run_{name}.sh"
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=10)
    assert f"-m examples.recipes {name} " in script.read_text()
    assert (ROOT / "examples" / name / "README.md").exists()
    assert f"]({name}/README.md)" in (ROOT / "examples/README.md").read_text()


def test_an_unknown_example_is_refused_by_naming_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"'chess'; there are: .*tool_calculator"):
        recipe("chess")
