"""A run borrows an engine from another site, with a network and a Ray cluster of its own, and is cut off from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import core_rewards
import pytest
from chaos import MARK, ChaosRun
from networks import INTERFACE, Site, Sites, two_sites
from scaled import Scaled

from relax_engine.observe.metrics import read_metrics

pytestmark = pytest.mark.net

STEPS, ROWS = 150, 16
KEY = "a-key-that-both-sites-know"
HERE = Path(__file__).parent


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sites]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", INTERFACE)
    monkeypatch.setenv("RELAX_ENGINE_API_KEY", KEY)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with two_sites() as both:
        yield both


@pytest.fixture
def lent(sites: Sites, tiny: Any) -> Iterator[str]:
    """URL of an engine on the Ray cluster of site `b`."""
    temporary = tempfile.mkdtemp(prefix="site-", dir="/tmp")
    ray = Path(sys.executable).parent / "ray"
    environment = {**os.environ, MARK: uuid.uuid4().hex, "RAY_TMPDIR": temporary}
    environment.pop("RAY_ADDRESS", None)
    start = ["start", "--head", "--port=6380", f"--node-ip-address={sites.b.address}", f"--temp-dir={temporary}"]
    small = ["--num-cpus=2", "--object-store-memory=100000000", "--include-dashboard=false", "--disable-usage-stats"]
    job = None
    try:
        with sites.b.inside():
            subprocess.run([ray, *start, *small], env=environment, check=True, timeout=120, capture_output=True)
            command = [sys.executable, HERE / "lending_site.py", f"{sites.b.address}:6380", tiny.model]
            job = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/tmp"
            )
        assert job.stdout is not None
        yield job.stdout.readline().strip()
    finally:
        if job is not None:
            job.communicate(timeout=60)
        left = ChaosRun(tiny, Path(temporary), {})
        left.mark = environment[MARK]
        left.stop()
        shutil.rmtree(temporary, ignore_errors=True)


def weight_version(site: Site, url: str) -> int:
    """What the engine at `url` says, asked by its own site."""
    request = urllib.request.Request(f"{url}/model_info", headers={"Authorization": f"Bearer {KEY}"})
    with site.inside(), urllib.request.urlopen(request, timeout=20) as answer:
        return int(json.load(answer)["weight_version"])


@pytest.mark.timeout(600)
def test_a_site_is_cut_off_and_comes_back(sites: Sites, lent: str, tiny: Any, tmp_path: Path) -> None:
    flags = {
        "hybrid": True,
        "max_staleness": 1,
        "partial_rollout": True,
        "num_rollout": STEPS,
        "custom_rm_path": f"{core_rewards.HERE}:even",
        "save": str(tmp_path / "ckpt"),
        "save_interval": 100,
        "weight_sync_transport": "broadcast",
        "api_host": sites.a.address,
        "engine_url_networks": [f"{sites.b.address}/32"],
        "use_health_check": True,
        "rollout_health_check_interval": 1.0,
        "rollout_health_check_timeout": 3.0,
        "weight_sync_timeout": 15.0,
    }
    run = ChaosRun(tiny, tmp_path / "run", flags)
    scaled = Scaled(run)
    assert lent.startswith(f"http://{sites.b.address}:")
    try:
        with sites.a.inside():
            run.start()
            assert run.wait_for_step(2, 180), run.report()
            assert scaled.engines()[0]["url"].startswith(f"http://{sites.a.address}:")
        with sites.b.inside():  # the other site offers its engine
            scaled.scale("scale_out", "FAILED", engine_urls=[f"http://{sites.b.router}:80"])
            scaled.scale("scale_out", "ACTIVE", engine_urls=[lent])
        with sites.a.inside():
            scaled.serve(2)
        assert weight_version(sites.b, lent) > 0

        sites.cut()
        cut = time.monotonic()
        with sites.a.inside():
            scaled.serve(1)
            noticed = time.monotonic() - cut
            step = run.steps()
            assert run.wait_for_step(step + 5, 60), run.report()
        stale = weight_version(sites.b, lent)  # its own site sees it alive, with old weights
        assert stale < run.steps()

        sites.restore()
        with sites.b.inside():
            scaled.scale("scale_out", "ACTIVE", engine_urls=[lent])
        with sites.a.inside():
            scaled.serve(2)
        assert weight_version(sites.b, lent) > stale
        with sites.a.inside():
            run.finish(300)
        run.audit(STEPS, ROWS)
        longest = max(record["perf/step_time"] for record in read_metrics(run.run_dir / "metrics.jsonl"))
        print(f"\nout of service {noticed:.1f} s after the cut, with version {stale}; longest step {longest:.1f} s")
        print(f"all {STEPS * ROWS} rows trained, each once")
    finally:
        run.stop()
