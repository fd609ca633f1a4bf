"""The commands of docs/algorithms.md are accepted as printed, and there is one for every algorithm."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from relax_engine.algorithms import get, names
from relax_engine.algorithms.registry import BUILTIN
from relax_engine.config.doctor import check
from relax_engine.config.parse import parse_args

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/algorithms.md").read_text()
DEMO = "--config examples/tiny_math/tiny_math.yaml --hf-checkpoint build/tiny_math/start"
DEMO += " --prompt-data build/tiny_math/data/train.parquet"
COMMANDS = re.findall(r"^    relax train \$DEMO (.*)$", TEXT.replace("\\\n", " "), re.MULTILINE)


def test_the_demo_is_what_the_commands_stand_for() -> None:
    (first, second) = re.findall(r'^    DEMO="(.*)"$', TEXT, re.MULTILINE)
    assert second.replace("$DEMO", first) == DEMO


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command: str, run_files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = parse_args(shlex.split(f"{DEMO} {command}"))
    there = config.replace(
        hf_checkpoint=str(run_files.model), prompt_data=[str(run_files.train)], metadata_key="extra_info"
    )
    assert [str(finding) for finding in check(there) if finding.severity == "error"] == []


def test_every_algorithm_has_a_section_and_a_command() -> None:
    sections = re.findall(r"^### (\w+)$", TEXT, re.MULTILINE)
    assert sorted(sections) == sorted(BUILTIN)
    used = {match for command in COMMANDS for match in re.findall(r"--advantage-estimator (\w+)", command)}
    assert used == set(BUILTIN)
    assert set(BUILTIN) <= set(names())


def test_sections_name_the_flags_that_the_algorithm_reads() -> None:
    parts = re.split(r"^### (\w+)$", TEXT, flags=re.MULTILINE)
    for name, section in zip(parts[1::2], parts[2::2], strict=True):
        inherited = ("those of the group", "those of `grpo`")
        for flag in get(name).flags or ():
            stands = f"--{flag.replace('_', '-')}" in section or any(phrase in section for phrase in inherited)
            assert stands, f"{name}: {flag}"
