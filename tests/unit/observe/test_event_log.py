"""The log of what happens to a run's parts, and the command that shows it."""

from pathlib import Path

import pytest

from relax_engine.cli.main import main
from relax_engine.observe.events import EVENTS, EventLog, read_events


def test_events_are_kept_without_credentials_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_events(tmp_path / EVENTS) == []
    log = EventLog(tmp_path / EVENTS)
    log.write({"kind": "step", "role": "actor", "step": 3, "metrics": {}})
    log.write({"kind": "role_restarted", "role": "actor", "reason": "401 for http://user:secret@host:1"})
    EventLog(tmp_path / EVENTS).write(
        {"kind": "engine_left", "role": "rollout", "engine": "http://h:1", "origin": None}
    )
    with (tmp_path / EVENTS).open("a") as file:
        file.write('{"time": 1.0, "kind": "cut off by a cra')
    events = read_events(tmp_path / EVENTS)
    assert [event["kind"] for event in events] == ["role_restarted", "engine_left"]
    assert main(["elastic", "events", "--run-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line[21:] for line in shown] == [
        "kind=role_restarted  role=actor  reason=401 for http://***@host:1",
        "kind=engine_left  role=rollout  engine=http://h:1",
    ]
