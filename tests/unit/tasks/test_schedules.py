"""Schedules from a file: what is not one is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from relax_engine.errors import ConfigError
from tasks.schedules import VARIABLE, read_schedules

GOOD = "{cron: '0 3 * * *', train_prompts: t, heldout_prompts: h, base_model: b, config: c"


def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> dict[str, object]:
    (tmp_path / "schedules.yaml").write_text(text)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "schedules.yaml"))
    return dict(read_schedules())


def test_no_file_is_no_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert read_schedules() == {}


def test_overrides_are_those_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(tmp_path, monkeypatch, f"a: {GOOD}, overrides: {{num_rollout: 5}}}}")
    (schedule,) = read_schedules().values()
    assert schedule.inputs("a")["overrides"].num_rollout == 5
    assert "cron" not in schedule.inputs("a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "holds no mapping"),
        ("a: {cron: '0 3 * * *'}", "the schedule of 'a'.*train_prompts"),
        (f"a: {GOOD}, sed: 1}}", "the schedule of 'a'.*sed"),
        (f"a: {GOOD}, overrides: {{num_rollouts: 5}}}}", "the schedule of 'a'.*num_rollouts"),
    ],
)
def test_a_mistake_is_named(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        read(tmp_path, monkeypatch, text)
