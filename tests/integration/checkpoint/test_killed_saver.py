"""A saver killed at any moment: the newest complete checkpoint always loads, with the content of its iteration."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from relax_engine.checkpoint.manager import CheckpointManager

KILLS = 30
FILES = 6

SAVER = """
import sys
from pathlib import Path
from relax_engine.checkpoint.manager import CheckpointManager
manager = CheckpointManager(sys.argv[1])
print("ready", flush=True)
latest = manager.latest()
iteration = latest.iteration if latest else 0
while True:
    iteration += 1
    for _ in range(2):  # the second save of an iteration replaces the first
        with manager.writing(iteration) as directory:
            for part in range(6):
                (directory / f"part{part}").write_bytes(f"{iteration:08d}".encode() * 20000)
    manager.prune(2)
"""


def test_sigkill_at_random_moments_never_costs_a_complete_checkpoint(tmp_path: Path):
    manager = CheckpointManager(tmp_path)
    moments = random.Random(3)
    newest = 0
    leftovers = 0
    for _ in range(KILLS):
        process = subprocess.Popen([sys.executable, "-c", SAVER, tmp_path], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(moments.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)

        leftovers += any(not p.name.startswith("iter_") or "." in p.name for p in tmp_path.iterdir() if p.is_dir())
        latest = manager.latest()
        if latest is None:
            assert newest == 0
            continue
        assert latest.iteration >= newest
        newest = latest.iteration
        parts = sorted(latest.path.glob("part*"))
        assert len(parts) == FILES
        assert {part.read_bytes() for part in parts} == {f"{newest:08d}".encode() * 20000}
    assert newest >= 5, "the kills came too early to test anything"
    assert leftovers >= 3, "the kills came too late to test anything"
    with manager.writing(newest + 1) as directory:
        (directory / "part0").write_text("x")
    manager.prune(1)
    kept = [p.name for p in tmp_path.iterdir() if p.is_dir()]
    assert kept == [f"iter_{newest + 1:07d}"]
