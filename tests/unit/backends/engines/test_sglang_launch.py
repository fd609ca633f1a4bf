"""Command lines and environments of SGLang's server, without the server."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from relax_engine.backends.engines.process import command_arguments
from relax_engine.backends.engines.sglang_launch import find_sglang, launch_sglang
from relax_engine.backends.engines.types import EngineLaunchError

# In place of an interpreter: says what is installed, then writes down how the server was started, and ends.
INTERPRETER = """#!{python}
import json, os, pathlib, sys
if sys.argv[1] == "-c":
    print(json.dumps(["0.5.23", {plugin!r}, "2.13.0+cpu"]))
    sys.exit()
assert sys.argv[1:3] == ["-m", "sglang.launch_server"]
key = sys.argv[sys.argv.index("--config") + 1] if "--config" in sys.argv else None
facts = {{
    "arguments": sys.argv[3:],
    "environment": dict(os.environ),
    "key": key and [pathlib.Path(key).read_text(), oct(os.stat(key).st_mode & 0o777)],
}}
pathlib.Path({out!r}).write_text(json.dumps(facts))
sys.exit("no memory for the-key")
"""


def interpreter(directory: Path, plugin: str | None) -> Path:
    path = directory / "python"
    path.write_text(INTERPRETER.format(python=sys.executable, plugin=plugin, out=str(directory / "facts.json")))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_arguments_by_name() -> None:
    options = {"tp_size": 2, "enable_x": True, "off": False, "none": None, "paths": ["a", "b"], "json": {"k": 1}}
    assert command_arguments(options) == [
        "--tp-size", "2", "--enable-x", "--paths", "a", "b", "--json", '{"k": 1}',
    ]  # fmt: skip


def test_an_environment_that_is_not_there_names_the_way_to_it(tmp_path: Path) -> None:
    with pytest.raises(EngineLaunchError, match=r"no interpreter .*/missing .* make sglang-cpu .* --sglang-python"):
        launch_sglang("model", python=str(tmp_path / "missing"))
    with pytest.raises(EngineLaunchError, match=r"has no SGLang\. .* make sglang-cpu"):
        find_sglang(sys.executable)


@pytest.mark.parametrize("plugin", ["0.1.0", None])
def test_how_the_server_is_started(tmp_path: Path, plugin: str | None) -> None:
    """The platform for CPUs decides what it runs on; the user's arguments win; the key is on no command line."""
    with pytest.raises(EngineLaunchError, match=r"(?s)ended with status 1 during start:.*no memory for \*\*\*"):
        launch_sglang(
            tmp_path,
            python=str(interpreter(tmp_path, plugin)),
            context_length=100,
            max_running_requests=7,
            gives_memory_back=True,
            api_key=SecretStr("the-key"),
            extra_args={"dtype": "bfloat16", "enable_p2p_check": True},
        )
    facts = json.loads((tmp_path / "facts.json").read_text())
    line = facts["arguments"]
    values = {name: line[line.index(name) + 1] for name in ("--dtype", "--context-length", "--max-running-requests")}
    assert values == {"--dtype": "bfloat16", "--context-length": "108", "--max-running-requests": "7"}
    assert {"--enable-metrics", "--enable-p2p-check"} <= set(line)
    assert "the-key" not in " ".join(line)
    assert facts["key"] == ["api-key: the-key\n", "0o600"]
    assert not Path(line[line.index("--config") + 1]).exists()
    assert facts["environment"]["HF_HUB_OFFLINE"] == "1"
    on_cpu = plugin is not None
    assert (facts["environment"].get("SGLANG_PLATFORM") == "relax_cpu") is on_cpu
    assert ("torch_native" in line) is on_cpu
    assert ("--enable-memory-saver" in line) is not on_cpu
