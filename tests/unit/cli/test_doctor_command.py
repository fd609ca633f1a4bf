"""`relax doctor`: what it prints, and its exit code."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from relax_engine.cli.main import main
from relax_engine.config import RunConfig


def as_argv(flags: dict[str, Any]) -> list[str]:
    argv = []
    for name, value in flags.items():
        argv += ["--" + name.replace("_", "-"), *map(str, value if isinstance(value, list) else [value])]
    return argv


def test_a_valid_run(run_files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *as_argv(run_files.flags)]) == 0
    text = capsys.readouterr().out
    assert "roles     rollout 1, actor 1\n" in text
    assert "devices   1 " in text
    assert text.endswith("no errors; this run can start\n")
    printed = yaml.safe_load(text.split("\nmode ")[0])
    assert RunConfig.from_flat(**printed) == RunConfig.from_flat(**run_files.flags)


def test_findings_and_exit_code(run_files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *as_argv(run_files.flags), "--save-interval", "3", "--gamma", "0.9"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].startswith("error     --save-interval 3, --save (not set): there is no directory")
    assert lines[-2].startswith("warning   --gamma 0.9")
    assert lines[-1] == "1 error(s); this run cannot start"


@pytest.mark.parametrize("spelling", [["--format", "json"], ["--format=json"]])
def test_json(run_files: Any, spelling: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    resource = '{"actor": [1, 2], "rollout": [1, 1], "actor_fwd": [1, 1], "advantages": [1, 0]}'
    flags = [*as_argv(run_files.flags), "--fully-async", "--resource", resource, "--max-staleness", "2"]
    assert main(["doctor", *spelling, *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    assert report["findings"] == []
    assert report["roles"] == {"rollout": 1, "actor_fwd": 1, "advantages": 0, "actor": 2}
    assert report["devices"] == 4
    assert report["staleness_bound"] == 2
    assert report["config"]["data"]["global_batch_size"] == 8


def test_json_of_a_command_line_that_cannot_be_parsed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--format", "json", "--learning-rat", "1"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert report["findings"][0]["severity"] == "error"
    assert "unknown flag --learning-rat" in report["findings"][0]["message"]


def test_unknown_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--format", "xml"]) == 1
    assert capsys.readouterr().err == "error: --format xml: must be one of text, json\n"


def test_it_imports_no_heavy_library(run_files: Any) -> None:
    import subprocess
    import sys

    program = (
        "import sys\n"
        "from relax_engine.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        "sys.exit(code or sorted({'torch', 'ray', 'megatron', 'transformers'} & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "doctor", *as_argv(run_files.flags)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr
