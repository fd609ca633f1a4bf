"""Progress and logging, on and off a terminal."""

from __future__ import annotations

import io
import logging
import os
import pty
import subprocess
import sys

import pytest

from relax_engine.utils.logging import configure_logging
from relax_engine.utils.progress import progress
from relax_engine.utils.suggest import nearest


def test_plain_lines_off_a_terminal() -> None:
    stream = io.StringIO()
    with progress("Converting", 3, stream=stream, interval_s=0.0) as work:
        work.advance(note="a.parquet")
        work.advance(2)
    lines = stream.getvalue().splitlines()
    assert lines[:3] == ["Converting: started", "Converting: 1/3 a.parquet", "Converting: 3/3"]
    assert lines[3].startswith("Converting: 3/3 in 0.")
    assert "\x1b" not in stream.getvalue()


def test_lines_are_rare() -> None:
    stream = io.StringIO()
    with progress("Rows", stream=stream, interval_s=60.0) as work:
        for _ in range(1000):
            work.advance()
    assert stream.getvalue().splitlines()[1].startswith("Rows: 1000 in ")


def test_an_error_inside_is_not_reported_as_finished() -> None:
    stream = io.StringIO()
    with pytest.raises(ZeroDivisionError), progress("Rows", 2, stream=stream):
        raise ZeroDivisionError
    assert stream.getvalue() == "Rows: started\n"


def test_a_bar_on_a_terminal() -> None:
    program = (
        "from relax_engine.utils.progress import progress\n"
        "with progress('Training', 2) as work:\n"
        "    work.advance(note='reward 0.5'); work.advance(note='reward 0.75')\n"
    )
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    subprocess.run([sys.executable, "-c", program], stderr=slave, env=environment, check=True, timeout=60)
    os.close(slave)
    text = os.read(master, 65536).decode()
    os.close(master)
    assert "\x1b" in text
    assert "2/2" in text
    assert "reward 0.75" in text


def test_logging_is_configured_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.WARNING)
    configure_logging("INFO")
    configure_logging("INFO")
    logging.getLogger("relax_engine.test").info("Finish rollout %d/%d", 3, 200)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("INFO    relax_engine.test: Finish rollout 3/200")


def test_level_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setenv("RELAX_LOG_LEVEL", "error")
    configure_logging()
    assert root.level == logging.ERROR


def test_nearest() -> None:
    assert nearest("trian", ["train", "doctor"]) == "train"
    assert nearest("top_p", ["eval_top_pp", "rollout_top_p"]) == "rollout_top_p"
    assert nearest("zzz", ["train"]) is None
