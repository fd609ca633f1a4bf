"""Programs in the sandbox: what they can do, what they cannot, and what it costs when they do not end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from relax_engine.rewards.code import code_reward, find_program, same_output
from relax_engine.rewards.sandbox.limits import Limits
from relax_engine.rewards.sandbox.run import Outcome, run_program
from relax_engine.types import Sample

SHORT = Limits(cpu_s=5, wall_s=20.0, memory_mb=512)


def run(code: str, limits: Limits = SHORT, **given: Any) -> Outcome:
    (outcome,) = run_program(code, [given or {"stdin": "3 4\n"}], limits)
    return outcome


EACH = "def run(code):\n    exec(code, {'__name__': '__main__'})\n"

ORDINARY = {
    "a, b = map(int, input().split()); print(a + b)": "7\n",
    "import sys; print(sum(map(int, sys.stdin.read().split())))": "7\n",
    "open('x', 'w').write('hi'); print(open('x').read())": "hi\n",
    "import numpy; print(numpy.arange(4).sum())": "6\n",
    "import threading; t = threading.Thread(target=print, args=('t',)); t.start(); t.join()": "t\n",
    "def f(n):\n    return n and 1 + f(n - 1)\nprint(f(9000))": "9000\n",
    "import os; print(sorted(os.environ))": "['LANG', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'PATH']\n",
    "import sys\nif __name__ == '__main__':\n    print('main')": "main\n",
}

REFUSED = {
    "import socket; socket.socket()": "PermissionError",
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:1')": "not permitted",
    "import os; os.fork()": "PermissionError",
    "import subprocess; subprocess.run(['true'])": "PermissionError",
    "import os; os.execv('/bin/true', ['true'])": "PermissionError",
    "import os; os.kill(os.getppid(), 9)": "PermissionError",
    "import os; os.kill(-1, 9)": "PermissionError",
    "import os; os.setsid()": "PermissionError",
    "import ctypes; l = ctypes.CDLL(None); l.prctl(1, 0) and 1 / 0": "ZeroDivisionError",
    "import os; os.memfd_create('x')": "PermissionError",
    "open('/etc/passwd')": "PermissionError",
    "open('/proc/self/environ')": "PermissionError",
    "import os; os.listdir('/tmp')": "PermissionError",
    "open('/tmp/outside', 'w')": "PermissionError",
    "import sys; open(sys.prefix + '/x', 'w')": "Error",
    f"open({__file__!r})": "PermissionError",
    "f = open('big', 'wb')\nwhile True:\n    f.write(bytes(1 << 20))": "OSError",
    "import os\nfor i in range(10**6):\n    os.close(os.open(f'f{i}', os.O_CREAT))": "OSError",
    "while True:\n    print('x' * 10**6)": "OSError",
    "x = bytearray(10**9)": "MemoryError",
    "fs = [open('f', 'w') for _ in range(1000)]": "Too many open files",
    "import resource; resource.setrlimit(resource.RLIMIT_CPU, (9, 9))": "Error",
}


def test_ordinary_programs_run() -> None:
    inputs = [{"function": "run", "arguments": [code], "stdin": "3 4\n"} for code in ORDINARY]
    outcomes = run_program(EACH, inputs, SHORT)
    assert {code: outcome.stdout for code, outcome in zip(ORDINARY, outcomes, strict=True)} == ORDINARY


def test_everything_else_is_refused() -> None:
    inputs = [{"function": "run", "arguments": [code]} for code in REFUSED]
    outcomes = run_program(EACH, inputs, SHORT)
    for (code, error), outcome in zip(REFUSED.items(), outcomes, strict=True):
        assert outcome.ended == "error", code
        assert error in outcome.stderr, code


@pytest.mark.parametrize(
    ("code", "wall_s", "ended"),
    [
        ("import time; time.sleep(60)", 0.5, "wall time"),
        ("import ctypes; ctypes.string_at(0)", 20.0, "signal"),
        ("raise SystemExit(3)", 20.0, "error"),
    ],
)
def test_programs_that_do_not_end_well(code: str, wall_s: float, ended: str) -> None:
    started = time.monotonic()
    assert run(code, SHORT._replace(wall_s=wall_s)).ended == ended
    assert time.monotonic() - started < 15.0


def test_busy_programs_are_ended_by_their_processor_time() -> None:
    outcome = run("while True: pass", SHORT._replace(cpu_s=1, wall_s=60.0))
    assert outcome.ended == "CPU time"
    assert 0.5 <= outcome.cpu_s <= 1.5


def test_a_program_finds_no_right_answers_in_its_memory() -> None:
    secret = "the right answer is quokka"
    code = (
        "import gc, sys\n"
        "frame, text = sys._getframe(), ''\n"
        "while frame:\n"
        "    text += str(frame.f_locals); frame = frame.f_back\n"
        "text += ''.join(str(o) for o in gc.get_objects() if isinstance(o, (dict, list)))\n"
        "print('quok' + 'ka' in text)\n"
    )
    tests = {"inputs": ["1"], "outputs": [secret]}
    assert run(code).stdout == "False\n"
    assert code_reward(None, Sample(response=f"```python\n{code}```", label=json.dumps(tests))) == 0.0


ANSWER = "<think>```python\nwrong\n```</think>Here:\n```python\n{}\n```\nand in C:\n```c\nint x;\n```"


@pytest.mark.parametrize(
    ("program", "tests", "metadata", "share"),
    [
        ("print(int(input()) * 2)", {"inputs": ["1", "2"], "outputs": ["2\n", "4"]}, {}, 1.0),
        ("print(int(input()) ** 2)", {"inputs": ["1", "2", "3"], "outputs": ["1", "4", "6"]}, {}, 2 / 3),
        ("print(1 / 3)", {"inputs": [""], "outputs": ["0.33333333"]}, {}, 1.0),
        ("def f(a, b):\n    return (a, b)", {"fn_name": "f", "inputs": [[1, "x"]], "outputs": [[1, "x"]]}, {}, 1.0),
        (
            "class Solution:\n    def f(self, a):\n        return a",
            {"fn_name": "f", "inputs": ["[1]"], "outputs": ["[1]"]},
            {},
            1.0,
        ),
        ("def f(a):\n    return 2", {"fn_name": "f", "inputs": [[1]], "outputs": [[2]]}, {}, 1.0),
        ("def f(a):\n    return True", {"fn_name": "f", "inputs": [[1]], "outputs": [1]}, {}, 0.0),
        ("print(input())", [{"input": "a", "output": "a", "testtype": "stdin"}], {}, 1.0),
        ("def f(a):\n    return a", [{"input": "1", "output": "1", "testtype": "functional"}], {"fn_name": "f"}, 1.0),
        ("def f(a):\n    return a", ["assert f(1) == 1", "assert f(2) == 3"], {}, 0.5),
        ("def f(a):\n    return a", "def check(g):\n    assert g(1) == 1\n", {"entry_point": "f"}, 1.0),
        ("import os; os._exit(0)", ["assert False"], {}, 0.0),
        ("raise SystemExit", ["assert False"], {}, 0.0),
    ],
)
def test_code_reward(program: str, tests: Any, metadata: dict[str, Any], share: float) -> None:
    label = tests if isinstance(tests, str) else json.dumps(tests)
    sample = Sample(response=ANSWER.format(program), label=label, metadata=metadata)
    partial = 0.0 < share < 1.0
    assert code_reward(None, sample, partial=partial) == pytest.approx(share)


def test_all_tests_must_pass_unless_shares_count() -> None:
    sample = Sample(
        response=ANSWER.format("def f(a):\n    return a"), metadata={"tests": ["assert f(1) == 1", "assert 0"]}
    )
    assert code_reward(None, sample) == 0.0
    assert code_reward(None, sample, max_tests=1) == 1.0


def test_programs_and_outputs() -> None:
    assert find_program("```\na\n```\n```py\nb\n```\n```js\nc\n```") == "b\n"
    assert find_program("```\na\n```\n```js\nc\n```") == "a\n"
    assert find_program("print(1)") is None
    assert same_output("1 2 \n3\n\n", "1 2\n3")
    assert same_output("1 2\n3", "1 2 3")
    assert not same_output("1", "1.0000001 2")
    assert same_output("1.0000000001", "1.0")
    assert not same_output("10", "10.1")
    assert not same_output("07", "7")
    with pytest.raises(ValueError, match="no known form"):
        code_reward(None, Sample(response=ANSWER.format("x"), metadata={"tests": [1]}))


def test_a_killed_caller_takes_the_program_along(tmp_path: Path) -> None:
    script = tmp_path / "caller.py"
    script.write_text(
        "from relax_engine.rewards.sandbox.run import run_program\n"
        "run_program('import time; time.sleep(60)', [{'stdin': ''}])\n"
    )
    with subprocess.Popen([sys.executable, script], env=os.environ) as caller:
        family: list[psutil.Process] = []
        end = time.monotonic() + 20
        while len(family) < 2 and time.monotonic() < end:
            family = psutil.Process(caller.pid).children(recursive=True)
            time.sleep(0.02)
        assert len(family) == 2, "expected the supervisor and the program"
        caller.kill()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive
