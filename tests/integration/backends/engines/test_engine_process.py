"""The engine as a process: how it refuses to start and when it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from pydantic import SecretStr

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.launch import launch_engine
from relax_engine.backends.engines.types import EngineLaunchError, EngineRefusedError
from relax_engine.elastic.autoscaler.prometheus import parse_metrics


def test_a_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineLaunchError, match=r"(?s)status 2.*error: .*config\.json does not exist"):
        launch_engine(tmp_path)


def test_an_unknown_architecture_is_refused(qwen3: Path, tmp_path: Path) -> None:
    config = json.loads((qwen3 / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["MambaForCausalLM"]}))
    with pytest.raises(
        EngineLaunchError,
        match=r"(?s)status 2.*unknown model architecture 'MambaForCausalLM'; supported: .*LlamaForCausalLM",
    ):
        launch_engine(tmp_path)


def test_missing_weights_are_named(qwen3: Path, tmp_path: Path) -> None:
    config = json.loads((qwen3 / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    (tmp_path / "model.safetensors").symlink_to(qwen3 / "model.safetensors")
    with pytest.raises(EngineLaunchError, match=r"lacks 11 tensors of the model, first 'model.layers.3"):
        launch_engine(tmp_path)


def test_a_killed_parent_takes_the_engine_with_it(qwen3: Path) -> None:
    script = (
        "import sys, time\n"
        "from relax_engine.backends.engines.launch import launch_engine\n"
        f"engine = launch_engine({str(qwen3)!r}, max_total_tokens=4000)\n"
        "print(engine.pid, engine.log_path, flush=True)\n"
        "time.sleep(120)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, log = parent.stdout.readline().split()
        os.kill(int(pid), 0)
        parent.send_signal(signal.SIGKILL)
        parent.wait(10)
    deadline = time.monotonic() + 10
    while _alive(int(pid)):
        assert time.monotonic() < deadline, "the engine outlived its parent"
        time.sleep(0.05)
    Path(log).unlink()


def _alive(pid: int) -> bool:
    """True unless the process is gone or a zombie that nobody has reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_an_engine_with_a_key_serves_who_has_it(qwen3: Path) -> None:
    """What SGLang leaves open with `--api-key` is open: health, for probes, and metrics, for collectors."""
    right, wrong = SecretStr("right"), SecretStr("wrong")
    with launch_engine(qwen3, max_total_tokens=4000, api_key=right) as engine:
        assert "right" not in " ".join(psutil.Process(engine.pid).cmdline())
        async with EngineClient(engine.url, api_key=right) as client:
            assert len((await client.generate([1, 2], {"max_new_tokens": 3, "ignore_eos": True})).output_ids) == 3
        for key in (wrong, None):
            async with EngineClient(engine.url, api_key=key) as client:
                with pytest.raises(EngineRefusedError, match=r"401.*bearer token"):
                    await client.flush_cache()
                await client.health()
                load = parse_metrics(await client.metrics())
                assert (load.queued, load.running, load.queue_time.total, load.ttft.total) == (0, 0, 1, 1)
                assert load.queue_time.percentile(0.95) <= load.ttft.percentile(0.95) < 10


def test_close_ends_the_process_and_removes_the_log(qwen3: Path) -> None:
    with launch_engine(qwen3, max_total_tokens=4000, extra_args={"mem_fraction_static": 0.8}) as engine:
        assert "--mem-fraction-static 0.8" in engine.log_tail()
    assert engine.process.returncode is not None
    assert not engine.log_path.exists()
