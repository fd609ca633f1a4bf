"""Every place where texts and values are written: a credential that comes in does not come out."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from relax_engine.cli.doctor import describe, render
from relax_engine.cli.runner import run_command
from relax_engine.components.role import Role, RoleContext
from relax_engine.config import RunConfig
from relax_engine.core.failure import role_failure
from relax_engine.errors import RelaxError
from relax_engine.stream.client import StreamClient
from relax_engine.utils.logging import redact_records

SECRET = "hunter2hunter2hunter2"
URL = f"s3://user:{SECRET}@bucket/key"


@pytest.fixture
def records() -> Iterator[io.StringIO]:
    """What a plain handler of a logger writes in a process whose records are redacted."""
    previous = logging.getLogRecordFactory()
    redact_records()
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logger = logging.getLogger("redaction")
    logger.addHandler(handler)
    yield text
    logger.removeHandler(handler)
    logging.setLogRecordFactory(previous)


def test_log_records_and_their_tracebacks(records: io.StringIO) -> None:
    logger = logging.getLogger("redaction")
    logger.warning("reading %s failed", URL)
    try:
        raise OSError(f"Authorization: Bearer {SECRET}")
    except OSError:
        logger.exception("password=%s", SECRET)
    shown = records.getvalue()
    assert "reading s3://***@bucket/key failed" in shown
    assert "Traceback (most recent call last)" in shown
    assert SECRET not in shown


def test_the_configuration_that_is_shown_and_kept() -> None:
    config = RunConfig.from_flat(
        hf_checkpoint="model",
        prompt_data=["p"],
        weight_sync_url=URL,
        num_rollout=1,
        sglang_api_key=SECRET,
        train_env_vars={"HF_TOKEN": SECRET},
    )
    shown = config.to_yaml()
    assert "s3://***@bucket/key" in shown
    assert "HF_TOKEN: '***'" in shown
    report = describe(config)
    assert SECRET not in shown + json.dumps(report) + render(report, config)
    assert config.flat.train_env_vars == {"HF_TOKEN": SECRET}  # where it is needed, it is there


def test_errors_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(argv: list[str]) -> int:
        raise RelaxError(f"cannot read {URL}")

    assert run_command(fail, ["--debug"]) == 1
    shown = capsys.readouterr().err
    assert "error: cannot read s3://***@bucket/key" in shown
    assert SECRET not in shown


def test_the_error_of_a_role_and_its_file(tmp_path: Path) -> None:
    error = role_failure("rollout", OSError(f"cannot read {URL}"), tmp_path)
    assert "cannot read s3://***@bucket/key" in str(error)
    assert SECRET not in str(error) + (tmp_path / "errors.log").read_text()


def test_events() -> None:
    config = RunConfig.from_flat(hf_checkpoint="model", prompt_data=["p"], num_rollout=1)
    role = Role(RoleContext(config, [], cast("StreamClient", None), "run", start_step=0, num_steps=1))
    role.emit("engine_quarantined", reason=f"{URL} is gone", step=3, metrics={"train/loss": 0.5})
    assert role.drain_events() == [
        {
            "kind": "engine_quarantined",
            "role": "role",
            "reason": "s3://***@bucket/key is gone",
            "step": 3,
            "metrics": {"train/loss": 0.5},
        }
    ]
