"""Ceph's object gateway on this machine: one monitor, one storage daemon in memory, one gateway, no authentication.

Needs root and Debian's `ceph-mon ceph-osd radosgw ceph-common`. `make test-s3` starts it in the place of moto's server.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

from relax_engine.utils.network import free_port

_START_DEADLINE_S = 120.0
_STOP_DEADLINE_S = 20.0

# The monitor connection must be `crc`: with the default the gateway of release 16 waits for ever.
_CONFIG = """
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]
ms mon client mode = crc
ms mon cluster mode = crc
ms mon service mode = crc
ms bind ipv6 = false
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
run dir = {root}/run
pid file = {root}/run/$name.pid
admin socket = {root}/run/$name.asok
log file = {root}/log/$name.log
crash dir = {root}/crash
[mon.a]
mon data = {root}/mon
[osd.0]
osd data = {root}/osd
osd objectstore = memstore
memstore device bytes = 4G
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{gateway} tcp_nodelay=1
"""


@contextlib.contextmanager
def ceph_gateway(root: Path, access_key: str, secret_key: str) -> Iterator[str]:
    """Address of a gateway with one user, while the block runs. `root` holds its files."""
    for folder in ("mon", "osd", "run", "log", "crash"):
        (root / folder).mkdir(parents=True)
    fsid, v2, v1, gateway = uuid.uuid4(), free_port(), free_port(), free_port()
    config = root / "ceph.conf"
    config.write_text(_CONFIG.format(fsid=fsid, root=root, v2=v2, v1=v1, gateway=gateway))
    common = ["-c", str(config)]
    as_root = ["--setuser", "root", "--setgroup", "root"]
    addresses = f"[v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]"
    with contextlib.ExitStack() as daemons:

        def start(*command: str) -> None:
            log = daemons.enter_context((root / "log" / f"{command[0]}.out").open("w"))
            process = subprocess.Popen([*command, *common, "-f", *as_root], stdout=log, stderr=log)
            daemons.callback(_stop, process)

        _run("monmaptool", "--create", "--fsid", str(fsid), "--addv", "a", addresses, str(root / "monmap"))
        _run("ceph-mon", *common, "--mkfs", "-i", "a", "--monmap", str(root / "monmap"), *as_root)
        start("ceph-mon", "-i", "a")
        _run("ceph", *common, "osd", "create")
        _run("ceph-osd", *common, "-i", "0", "--mkfs", *as_root)
        _run("ceph", *common, "osd", "crush", "add", "osd.0", "1.0", "root=default")
        start("ceph-osd", "-i", "0")
        start("radosgw", "-n", "client.rgw", "--ms_mon_client_mode=crc")
        url = f"http://127.0.0.1:{gateway}"
        _await(url, root)
        user = ["--uid=test", "--display-name=test", f"--access-key={access_key}", f"--secret-key={secret_key}"]
        _run("radosgw-admin", *common, "-n", "client.rgw", "--ms_mon_client_mode=crc", "user", "create", *user)
        yield url


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_START_DEADLINE_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"


def _await(url: str, root: Path) -> None:
    deadline = time.monotonic() + _START_DEADLINE_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            assert time.monotonic() < deadline, f"{url} does not answer; logs are in {root / 'log'}"
            time.sleep(0.2)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
