"""`relax`: dispatch, exit codes and messages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relax_engine import __version__
from relax_engine.cli import main as cli
from relax_engine.cli.runner import INTERRUPTED, TERMINATED, message_of, run_command
from relax_engine.errors import ConfigError, RelaxError

ROOT = Path(__file__).parents[3]


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in cli.COMMANDS)
    assert cli.main([]) == 0
    assert capsys.readouterr().out == text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["exprot"]) == 1
    assert capsys.readouterr().err == "error: there is no command 'exprot'; did you mean `relax export`?\n"
    assert cli.main(["zzz"]) == 1
    assert "commands: train, doctor" in capsys.readouterr().err


def test_errors_are_one_message_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(argv: list[str]) -> int:
        raise ConfigError("first\nsecond")

    assert run_command(fail, []) == 1
    assert capsys.readouterr().err == "error: first\n       second\n"


@pytest.mark.parametrize("argv", [["--debug", "x"], ["x", "--debug"]])
def test_debug_adds_the_traceback_and_is_taken_out(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def fail(rest: list[str]) -> int:
        raise RelaxError(f"got {rest}")

    assert run_command(fail, argv) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: got ['x']\n")


def test_debug_by_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RELAX_DEBUG", "1")
    assert cli.main(["nope"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_and_defects() -> None:
    def interrupt(argv: list[str]) -> int:
        raise KeyboardInterrupt

    def defect(argv: list[str]) -> int:
        raise ZeroDivisionError

    assert run_command(interrupt, []) == INTERRUPTED == 130
    with pytest.raises(ZeroDivisionError):
        run_command(defect, [])


def test_a_remote_error_shows_its_cause() -> None:
    class Remote(RelaxError):
        cause = ConfigError("the cause")

    assert message_of(Remote("ray::f() long remote traceback")) == "the cause"


def test_sigterm_unwinds(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from relax_engine.cli.runner import run_command\n"
        "def command(argv):\n"
        "    try:\n"
        "        print('ready', flush=True); time.sleep(60)\n"
        "    finally:\n"
        "        print('closed', flush=True)\n"
        "sys.exit(run_command(command, []))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
    assert out == "closed\n"
    assert process.returncode == TERMINATED


def test_a_closed_pipe_is_no_defect() -> None:
    program = (
        "import sys\n"
        "from relax_engine.cli.runner import run_command\n"
        "def command(argv):\n"
        "    for _ in range(100000): print('x' * 100)\n"
        "    return 0\n"
        "sys.exit(run_command(command, []))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait(timeout=20)


@pytest.mark.parametrize("entry", ["train.py", "doctor.py"])
def test_entry_points_run_as_files_from_anywhere(entry: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "relax_engine" / "entrypoints" / entry), "--num-rolout", "3"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "error: unknown flag --num-rolout; did you mean --num-rollout?\n"


def test_entry_point_runs_as_a_module(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "relax_engine.entrypoints.train", "--lr", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "error: --lr 0: must be greater than 0.0\n"


@pytest.mark.parametrize("command", ["", "train", "doctor", "lineage", "eval", "import", "export", "data"])
def test_help_is_fast(command: str) -> None:
    """Under a second of processor time, and without the libraries that would make it slow."""
    program = (
        "import sys\n"
        "from relax_engine.cli.main import main\n"
        "try:\n"
        "    code = main(sys.argv[1:])\n"
        "except SystemExit as end:\n"
        "    code = end.code or 0\n"
        "slow = {'torch', 'ray', 'megatron', 'transformers', 'great_expectations', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(slow)}' if slow else code)\n"
    )
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", program, *command.split(), "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert done.returncode == 0, done.stderr
    assert "usage: " in done.stdout
    assert used < 1.0


def test_hooks_are_found_where_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "my_own_hook.py").write_text("VALUE = 7\n")

    def command(argv: list[str]) -> int:
        import my_own_hook

        return int(my_own_hook.VALUE)

    assert run_command(command, []) == 7


def test_termination_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    run_command(lambda argv: 0, [])
    assert signal.getsignal(signal.SIGTERM) is before
